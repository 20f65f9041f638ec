"""A product of a few rows in Triton, its inner width split over programs: two launches.

A program has its whole tile of the weight on its way before the rows are there; the library's
kernels begin when the kernel in front has ended, and fill their pipeline then.

Shape letters: T = rows   K = inner width   N = columns   S = splits of the inner width
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.chain import launch, let_next_begin, wait_for_before
from headrace.kernels.linear.triton_sum_parts import sum_parts_kernel

# Rows that the narrow side of the matrix units takes at no further cost.
MAX_ROWS = 16


@triton.jit
def split_rows_kernel(
    x_ptr,
    weight_ptr,
    parts_ptr,
    T: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    T_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write one split's part of some columns: grid (tiles of N, splits).

    Reads the weight before it waits.
    """
    let_next_begin(CHAINED)
    split = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    width = split * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = tl.arange(0, T_PAD)
    is_column = (columns < N)[:, None]
    w = tl.load(
        weight_ptr + columns.to(tl.int64)[:, None] * K + width[None, :],
        mask=is_column & (width < K)[None, :],
        other=0.0,
    )
    wait_for_before(CHAINED)
    is_row = (rows < T)[None, :]
    x = tl.load(
        x_ptr + rows[None, :] * K + width[:, None], mask=is_row & (width < K)[:, None], other=0.0
    )
    part = tl.dot(w, x, input_precision=PRECISION)
    places = parts_ptr + (split * T + rows[None, :]) * N + columns[:, None]
    tl.store(places, part, mask=is_column & is_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRowsKnobs:
    """Launch settings.

    Measured on an H200 in decode steps of 8 rows and 48 layers (us a step): 7658, 7694 with tiles
    of 64 x 256 in 4 warps, 7809 with 64 x 512 in 8, 8173 with the library's products.

    Attributes:
        block_n: Columns of a program; a power of two.
        block_k: Inner width of a split; a power of two.
        num_warps: Of a program.
    """

    block_n: int = 128
    block_k: int = 256
    num_warps: int = 8


def split_rows_linear(
    x_TK: Tensor, weight_NK: Tensor, *, knobs: SplitRowsKnobs | None = None
) -> Tensor:
    """Multiply up to ``MAX_ROWS`` rows by a weight: ``x @ weight.T``.

    Args:
        x_TK: Rows, contiguous; at most ``MAX_ROWS``. Not modified.
        weight_NK: In x's dtype, contiguous. Not modified.
        knobs: Launch settings.

    Returns:
        ``[T, N]`` in x's dtype.

    Numerics:
        fp32 sums within a split, then over the splits in their order, one rounding. Row-local.

    Cost:
        Memory bound: reads the weight once, and writes and reads S * T * N * 4 bytes of parts,
        which stay in L2.
    """
    (num_rows, inner), columns = x_TK.shape, weight_NK.shape[0]
    y_TN = x_TK.new_empty((num_rows, columns))
    if num_rows == 0:
        return y_TN
    knobs = knobs or SplitRowsKnobs()
    num_splits = triton.cdiv(inner, knobs.block_k)
    parts_STN = x_TK.new_empty((num_splits, num_rows, columns), dtype=torch.float32)
    launch(
        split_rows_kernel,
        (triton.cdiv(columns, knobs.block_n), num_splits),
        x_TK,
        weight_NK,
        parts_STN,
        T=num_rows,
        N=columns,
        K=inner,
        T_PAD=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=knobs.block_n,
        BLOCK_K=knobs.block_k,
        PRECISION="ieee" if x_TK.dtype is torch.float32 else "tf32",
        num_warps=knobs.num_warps,
    )
    block = min(512, triton.next_power_of_2(columns))
    launch(
        sum_parts_kernel,
        (triton.cdiv(columns, block), num_rows),
        parts_STN,
        y_TN,
        num_rows,
        S=num_splits,
        S_PAD=triton.next_power_of_2(num_splits),
        N=columns,
        BLOCK_N=block,
        num_warps=4,
    )
    return y_TN
