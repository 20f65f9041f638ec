"""Down projections for a handful of pairs: a matrix times one row each.

Shape letters: P = pairs   H = hidden width   I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def pair_down_kernel(
    act_ptr,
    weight_ptr,
    out_ptr,
    ids_ptr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_I: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write a few columns of ``out[pair]``: grid (tiles of H, pairs).

    Reads the routing and the weights before it waits: the kernel of gate and up, which must be the
    one before, lets it begin only when the routing is there.
    """
    let_next_begin(CHAINED)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    pair = tl.program_id(1)
    width = tl.arange(0, BLOCK_I)
    is_wide = width < I
    # Past the first-level cache, which may hold what the layer before left there.
    expert = tl.load(ids_ptr + pair, cache_modifier=".cg").to(tl.int64)
    w = tl.load(
        weight_ptr + (expert * H + rows[:, None]) * I + width[None, :],
        mask=(rows < tl.where(expert >= 0, H, 0))[:, None] & is_wide[None, :],
        other=0.0,
    )
    wait_for_before(CHAINED)
    if expert < 0:
        return
    act = tl.load(act_ptr + pair * I + width, mask=is_wide, other=0.0).to(tl.float32)
    out = tl.sum(w.to(tl.float32) * act[None, :], 1)
    tl.store(out_ptr + pair * H + rows, out.to(out_ptr.dtype.element_ty), mask=rows < H)
