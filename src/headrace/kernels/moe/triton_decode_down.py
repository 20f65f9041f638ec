"""Down projections for few tokens an expert: weights stream past the activations.

Shape letters: P = pairs   E = experts   H = hidden width   I = expert width
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def down_decode_kernel(
    act_ptr,
    weight_ptr,
    out_ptr,
    ids_ptr,
    order_ptr,
    starts_ptr,
    H: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    BY_PAIR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write ``out[pair, columns]`` of one expert's pairs; the grid is as in gate and up.

    Reads the routing before it waits: the kernel of gate and up, which must be the one before,
    lets it begin only when that is there.
    """
    let_next_begin(CHAINED)
    tile = tl.program_id(0)
    place = tl.program_id(1)
    expert = place
    # Past the first-level cache, which may hold what the layer before left there.
    if BY_PAIR:
        expert = tl.load(
            ids_ptr + tl.load(order_ptr + place, cache_modifier=".cg"), cache_modifier=".cg"
        )
    start = tl.load(starts_ptr + tl.maximum(expert, 0), cache_modifier=".cg")
    stop = tl.load(starts_ptr + tl.maximum(expert, 0) + 1, cache_modifier=".cg")
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_I)
    weights = weight_ptr + tl.maximum(expert, 0).to(tl.int64) * (H * I)
    is_idle = start == stop
    if BY_PAIR:
        is_idle = (expert < 0) | (start != place)
    wait_for_before(CHAINED)
    if is_idle:
        return
    weights = weights + rows[:, None] * I + width[None, :]
    for first in range(start, stop, BLOCK_N):
        places = first + tl.arange(0, BLOCK_N)
        is_mine = places < stop
        # Rows past the expert's own belong to the next: read, and not stored.
        acts = act_ptr + tl.where(is_mine, places, start).to(tl.int64)[None, :] * I
        acts = acts + width[:, None]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in tl.range(0, I, BLOCK_I, num_stages=NUM_STAGES):
            if H % BLOCK_M == 0 and I % BLOCK_I == 0:
                w = tl.load(weights + i)
                a = tl.load(acts + i)
            else:
                is_wide = i + width < I
                w = tl.load(weights + i, mask=(rows < H)[:, None] & is_wide[None, :], other=0.0)
                a = tl.load(acts + i, mask=is_wide[:, None], other=0.0)
            acc = tl.dot(w, a, acc, input_precision=PRECISION)
        pairs = tl.load(order_ptr + places, mask=is_mine, other=0).to(tl.int64)
        tl.store(
            out_ptr + pairs[None, :] * H + rows[:, None],
            acc.to(out_ptr.dtype.element_ty),
            mask=is_mine[None, :] & (rows < H)[:, None],
        )
