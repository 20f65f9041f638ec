"""Gate and up projections with SwiGLU for a handful of pairs: a matrix times one row each.

Shape letters: P = pairs   K = experts per token   H = hidden width   I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def pair_gate_up_kernel(
    x_ptr,
    weight_ptr,
    act_ptr,
    ids_ptr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    TOP_K: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_H: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write a few columns of ``act[pair]``: grid (tiles of I, pairs). Reads nothing early."""
    columns = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    pair = tl.program_id(1)
    width = tl.arange(0, BLOCK_H)
    is_wide = width < H
    mask = (columns < I)[:, None] & is_wide[None, :]
    wait_for_before(CHAINED)
    # Only now: the next kernel reads the routing before it waits.
    let_next_begin(CHAINED)
    expert = tl.load(ids_ptr + pair).to(tl.int64)
    if expert < 0:
        return
    gate_rows = weight_ptr + (expert * (2 * I) + columns[:, None]) * H + width[None, :]
    gate_w = tl.load(gate_rows, mask=mask, other=0.0)
    up_w = tl.load(gate_rows + I * H, mask=mask, other=0.0)
    x = tl.load(x_ptr + (pair // TOP_K) * H + width, mask=is_wide, other=0.0).to(tl.float32)
    gate = tl.sum(gate_w.to(tl.float32) * x[None, :], 1)
    up = tl.sum(up_w.to(tl.float32) * x[None, :], 1)
    act = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(act_ptr + pair * I + columns, act.to(act_ptr.dtype.element_ty), mask=columns < I)
