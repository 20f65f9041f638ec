"""Gate and up projections with SwiGLU, for few tokens an expert: weights stream past the tokens.

Weights are the M side of the product and tokens the N side, so that a tile of weights is read once
for all tokens of its expert. A tile holds gate rows and the up rows that belong to them.

Shape letters: P = pairs   E = experts   K = experts per token   H = hidden width
    I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def gate_up_decode_kernel(
    x_ptr,
    weight_ptr,
    act_ptr,
    ids_ptr,
    order_ptr,
    starts_ptr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    TOP_K: tl.constexpr,
    BY_PAIR: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write ``act[p, columns]`` of one expert's pairs, in sorted order.

    Grid: tiles of I, experts; or places in the sorted order (``BY_PAIR``), of which the first of
    an expert works, so that few pairs need few programs. Reads nothing
    before it waits.
    """
    wait_for_before(CHAINED)
    # Only now: the next kernel reads the routing before it waits.
    let_next_begin(CHAINED)
    tile = tl.program_id(0)
    place = tl.program_id(1)
    expert = place
    if BY_PAIR:
        # Places of padding read an id of -1 and leave.
        expert = tl.load(ids_ptr + tl.load(order_ptr + place))
        if expert < 0:
            return
    start = tl.load(starts_ptr + expert)
    if BY_PAIR:  # noqa: SIM102
        if start != place:
            return
    stop = tl.load(starts_ptr + expert + 1)
    rows = tl.arange(0, 2 * BLOCK_I)
    # Rows 0.. of the tile are gate rows, rows BLOCK_I.. the up rows I below them.
    columns = tile * BLOCK_I + rows % BLOCK_I
    weight_rows = (rows // BLOCK_I) * I + columns
    width = tl.arange(0, BLOCK_H)
    weights = weight_ptr + expert.to(tl.int64) * (2 * I * H)
    weights = weights + weight_rows[:, None] * H + width[None, :]
    for first in range(start, stop, BLOCK_N):
        places = first + tl.arange(0, BLOCK_N)
        is_mine = places < stop
        pairs = tl.load(order_ptr + places, mask=is_mine, other=0)
        tokens = x_ptr + (pairs // TOP_K).to(tl.int64)[None, :] * H + width[:, None]
        acc = tl.zeros([2 * BLOCK_I, BLOCK_N], tl.float32)
        for h in tl.range(0, H, BLOCK_H, num_stages=NUM_STAGES):
            if I % BLOCK_I == 0 and H % BLOCK_H == 0:
                w = tl.load(weights + h)
                x = tl.load(tokens + h)
            else:
                is_wide = h + width < H
                w = tl.load(weights + h, mask=(columns < I)[:, None] & is_wide[None, :], other=0.0)
                x = tl.load(tokens + h, mask=is_wide[:, None], other=0.0)
            acc = tl.dot(w, x, acc, input_precision=PRECISION)
        halves = tl.permute(tl.reshape(acc, [2, BLOCK_I, BLOCK_N]), [1, 2, 0])
        gate, up = tl.split(halves)
        act = gate / (1.0 + tl.exp(-gate)) * up
        kept = tile * BLOCK_I + tl.arange(0, BLOCK_I)
        out = act_ptr + places.to(tl.int64)[None, :] * I + kept[:, None]
        tl.store(out, act.to(act_ptr.dtype.element_ty), mask=is_mine[None, :] & (kept < I)[:, None])
