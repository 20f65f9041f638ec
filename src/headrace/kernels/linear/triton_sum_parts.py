"""The sum of a product's parts in Triton.

Shape letters: T = rows   N = columns   S = splits of the inner width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit(do_not_specialize=["num_rows"])
def sum_parts_kernel(
    parts_ptr,
    y_ptr,
    num_rows,
    S: tl.constexpr,
    S_PAD: tl.constexpr,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write some columns of one row: grid (tiles of N, rows)."""
    let_next_begin(CHAINED)
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    splits = tl.arange(0, S_PAD)
    wait_for_before(CHAINED)
    parts = tl.load(
        parts_ptr + (splits[:, None] * num_rows + row) * N + columns[None, :],
        mask=(splits < S)[:, None] & (columns < N)[None, :],
        other=0.0,
    )
    y = tl.sum(parts, 0).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * N + columns, y, mask=columns < N)
