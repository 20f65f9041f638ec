"""Down projections for many tokens an expert.

Shape letters: P = pairs   E = experts   H = hidden width   I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.moe.triton_prefill_gate_up import find_tile


@triton.jit
def down_prefill_kernel(
    act_ptr,
    weight_ptr,
    out_ptr,
    order_ptr,
    starts_ptr,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write one tile of ``out``, each row at its pair; the grid is as in gate and up."""
    NUM_COLUMN_TILES: tl.constexpr = (H + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) // NUM_COLUMN_TILES
    expert, first, stop = find_tile(starts_ptr, tile, E, E_PAD, BLOCK_M)
    if expert >= E:
        return
    columns = (tl.program_id(0) % NUM_COLUMN_TILES) * BLOCK_N + tl.arange(0, BLOCK_N)
    places = first + tl.arange(0, BLOCK_M)
    is_mine = places < stop
    width = tl.arange(0, BLOCK_I)
    # Rows past the expert's own belong to the next, or are the first again: read, not stored.
    acts = act_ptr + tl.where(is_mine, places, first).to(tl.int64)[:, None] * I + width[None, :]
    weights = weight_ptr + expert.to(tl.int64) * (H * I) + columns[None, :] * I + width[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in tl.range(0, I, BLOCK_I, num_stages=NUM_STAGES):
        if H % BLOCK_N == 0 and I % BLOCK_I == 0:
            a = tl.load(acts + i)
            w = tl.load(weights + i)
        else:
            is_wide = i + width < I
            a = tl.load(acts + i, mask=is_wide[None, :], other=0.0)
            w = tl.load(weights + i, mask=is_wide[:, None] & (columns < H)[None, :], other=0.0)
        acc = tl.dot(a, w, acc, input_precision=PRECISION)
    pairs = tl.load(order_ptr + places, mask=is_mine, other=0).to(tl.int64)
    tl.store(
        out_ptr + pairs[:, None] * H + columns[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=is_mine[:, None] & (columns < H)[None, :],
    )
