"""Gate and up projections with SwiGLU for many tokens an expert: tiles of tokens and columns.

Shape letters: P = pairs   E = experts   K = experts per token   H = hidden width
    I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_tile(starts_ptr, tile, E: tl.constexpr, E_PAD: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the expert, first place and end of a tile of tokens; expert E when there is none."""
    experts = tl.arange(0, E_PAD)
    is_expert = experts < E
    starts = tl.load(starts_ptr + experts, mask=is_expert, other=0)
    stops = tl.load(starts_ptr + experts + 1, mask=is_expert, other=0)
    num_tiles = (stops - starts + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(num_tiles, 0)
    # The tile's expert is the first whose tiles end beyond it.
    expert = tl.sum((is_expert & (ends <= tile)).to(tl.int32), 0)
    is_mine = experts == expert
    before = tl.sum(tl.where(is_mine, ends - num_tiles, 0), 0)
    first = tl.sum(tl.where(is_mine, starts, 0), 0) + (tile - before) * BLOCK_M
    stop = tl.sum(tl.where(is_mine, stops, 0), 0)
    return expert, first, stop


@triton.jit
def gate_up_prefill_kernel(
    x_ptr,
    weight_ptr,
    act_ptr,
    order_ptr,
    starts_ptr,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_H: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write one tile of ``act``, in sorted order.

    Grid: tiles of tokens times tiles of columns, columns first: neighbours share their tokens,
    and the weights of an expert stay in L2 while its tiles pass.
    """
    NUM_COLUMN_TILES: tl.constexpr = (I + BLOCK_I - 1) // BLOCK_I
    tile = tl.program_id(0) // NUM_COLUMN_TILES
    expert, first, stop = find_tile(starts_ptr, tile, E, E_PAD, BLOCK_M)
    if expert >= E:
        return
    columns = (tl.program_id(0) % NUM_COLUMN_TILES) * BLOCK_I + tl.arange(0, BLOCK_I)
    places = first + tl.arange(0, BLOCK_M)
    is_mine = places < stop
    pairs = tl.load(order_ptr + places, mask=is_mine, other=0)
    width = tl.arange(0, BLOCK_H)
    tokens = x_ptr + (pairs // TOP_K).to(tl.int64)[:, None] * H + width[None, :]
    gates = weight_ptr + expert.to(tl.int64) * (2 * I * H)
    gates = gates + columns[None, :] * H + width[:, None]
    gate = tl.zeros([BLOCK_M, BLOCK_I], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_I], tl.float32)
    for h in tl.range(0, H, BLOCK_H, num_stages=NUM_STAGES):
        if I % BLOCK_I == 0 and H % BLOCK_H == 0:
            x = tl.load(tokens + h)
            g = tl.load(gates + h)
            u = tl.load(gates + I * H + h)
        else:
            is_wide = h + width < H
            x = tl.load(tokens + h, mask=is_wide[None, :], other=0.0)
            is_weight = is_wide[:, None] & (columns < I)[None, :]
            g = tl.load(gates + h, mask=is_weight, other=0.0)
            u = tl.load(gates + I * H + h, mask=is_weight, other=0.0)
        gate = tl.dot(x, g, gate, input_precision=PRECISION)
        up = tl.dot(x, u, up, input_precision=PRECISION)
    act = gate / (1.0 + tl.exp(-gate)) * up
    out = act_ptr + places.to(tl.int64)[:, None] * I + columns[None, :]
    tl.store(out, act.to(act_ptr.dtype.element_ty), mask=is_mine[:, None] & (columns < I)[None, :])
