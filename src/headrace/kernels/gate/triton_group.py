"""Sorting pairs by expert in Triton: a program an expert, which looks at all pairs.

A pair's place is the number of pairs of lower experts plus its rank among its own expert's. Every
program counts both for itself, so that nothing is shared, ordered by chance or launched twice.

Shape letters: P = pairs   E = experts
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def group_kernel(
    ids_ptr,
    order_ptr,
    starts_ptr,
    num_pairs,
    E: tl.constexpr,
    BLOCK_P: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write one expert's pairs in order, and where they start; program E serves the padding."""
    let_next_begin(CHAINED)
    wait_for_before(CHAINED)
    expert = tl.program_id(0)
    offsets = tl.arange(0, BLOCK_P)
    below = tl.zeros([BLOCK_P], tl.int32)
    for first in range(0, num_pairs, BLOCK_P):
        pairs = first + offsets
        ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
        below += ((ids >= 0) & (ids < expert)).to(tl.int32)
    start = tl.sum(below, 0)
    tl.store(starts_ptr + expert, start)
    # Padding has the id -1 and stands behind the last expert.
    wanted = tl.where(expert == E, -1, expert)
    place = start
    for first in range(0, num_pairs, BLOCK_P):
        pairs = first + offsets
        # What lies past the last pair is nobody's, not even the padding's.
        ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-2)
        is_mine = (ids == wanted).to(tl.int32)
        ranks = tl.cumsum(is_mine, 0) - 1
        tl.store(order_ptr + place + ranks, pairs, mask=is_mine != 0)
        place += tl.sum(is_mine, 0)
