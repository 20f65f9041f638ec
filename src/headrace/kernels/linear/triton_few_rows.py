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

from headrace.kernels.chain import launch, let_next_begin, wait_for_before

# Rows whose products all stay in registers.
MAX_ROWS = 8


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
    CHAINED: tl.constexpr,
):
    """Write a few columns of every row. Reads the weight before it waits."""
    let_next_begin(CHAINED)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    width = tl.arange(0, BLOCK_K)
    is_wide = width < K
    # All of the weight's loads are under way before the rows are there.
    w = tl.load(
        weight_ptr + columns.to(tl.int64)[:, None] * K + width[None, :],
        mask=(columns < N)[:, None] & is_wide[None, :],
        other=0.0,
    )
    wait_for_before(CHAINED)
    if BLOCK_N == 1:
        # All rows together: a loop over them would wait for each.
        rows = tl.arange(0, T)
        x = tl.load(x_ptr + rows[:, None] * K + width[None, :], mask=is_wide[None, :], other=0.0)
        y = tl.sum(x.to(tl.float32) * w.to(tl.float32), 1)
        tl.store(y_ptr + rows * N + tl.program_id(0), y.to(y_ptr.dtype.element_ty))
    else:
        for row in tl.static_range(T):
            x = tl.load(x_ptr + row * K + width, mask=is_wide, other=0.0).to(tl.float32)
            y = tl.sum(w.to(tl.float32) * x[None, :], 1)
            tl.store(y_ptr + row * N + columns, y.to(y_ptr.dtype.element_ty), mask=columns < N)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRowsKnobs:
    """Launch settings.

    Attributes:
        block_n: Columns of a program; a power of two.
        num_warps: Of a program.
    """

    block_n: int = 2
    num_warps: int = 4


def few_rows_knobs(num_columns: int, inner: int, num_rows: int = 1) -> FewRowsKnobs:
    """Choose settings: a program a column for narrow weights, else as many as registers hold.

    Measured on an H200 in decode steps of 48 layers, 5120 columns of width 2048: one row 2382 us a
    step with 8 columns in 8 warps, 2470 with 4 in 4; two rows 3695 and 3618.
    """
    if num_columns <= 512:
        return FewRowsKnobs(block_n=1)
    if inner > 2048:
        return FewRowsKnobs(block_n=2)
    return FewRowsKnobs(block_n=8, num_warps=8) if num_rows == 1 else FewRowsKnobs(block_n=4)


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
    knobs = knobs or few_rows_knobs(columns, inner, num_rows)
    y_TN = x_TK.new_empty((num_rows, columns))
    launch(
        few_rows_kernel,
        (triton.cdiv(columns, knobs.block_n),),
        x_TK,
        weight_NK,
        y_TN,
        T=num_rows,
        N=columns,
        K=inner,
        BLOCK_N=knobs.block_n,
        BLOCK_K=triton.next_power_of_2(inner),
        num_warps=knobs.num_warps,
    )
    return y_TN
