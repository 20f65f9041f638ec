"""Routing of very few tokens in Triton: one program does it all, since a launch costs as much.

Shape letters: T = tokens   E = experts   K = experts per token   P = T * K pairs
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before
from headrace.kernels.gate.triton_choose import choose_experts


@triton.jit
def route_few_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    order_ptr,
    starts_ptr,
    num_rows_ptr,
    logits_stride,
    T: tl.constexpr,
    T_PAD: tl.constexpr,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    STARTS_PAD: tl.constexpr,
    K: tl.constexpr,
    P_PAD: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write every token's experts and weights, the pairs by expert, and where experts start."""
    let_next_begin(CHAINED)
    P: tl.constexpr = T * K
    experts = tl.arange(0, E_PAD)
    wait_for_before(CHAINED)
    num_rows = T
    if HAS_PADDING:
        num_rows = tl.load(num_rows_ptr)
    tokens = tl.arange(0, T_PAD)
    is_token = (tokens < T)[:, None]
    logits = tl.load(
        logits_ptr + tokens[:, None] * logits_stride + experts[None, :],
        mask=is_token & (experts < E)[None, :],
        other=0.0,
    )
    places, weights = choose_experts(
        logits.to(tl.float32), experts, E, K, RENORMALIZE, logits.dtype == tl.bfloat16
    )
    ids = tl.where((tokens < num_rows)[:, None], experts[None, :], -1)
    out = tokens[:, None] * K + places
    is_chosen = is_token & (places < K)
    tl.store(weights_ptr + out, weights, mask=is_chosen)
    tl.store(ids_ptr + out, ids, mask=is_chosen)
    # The pairs are read back in another order than they were written in.
    tl.debug_barrier()
    pairs = tl.arange(0, P_PAD)
    ids = tl.load(ids_ptr + pairs, mask=pairs < P, other=-1)
    # Padding stands behind the last expert, and what is no pair behind that.
    keys = tl.where(ids < 0, E, ids) + tl.where(pairs < P, 0, E)
    mine, other = keys[:, None], keys[None, :]
    is_before = (other < mine) | ((other == mine) & (pairs[None, :] < pairs[:, None]))
    tl.store(order_ptr + tl.sum(is_before.to(tl.int32), 1), pairs, mask=pairs < P)
    bounds = tl.arange(0, STARTS_PAD)
    starts = tl.sum((keys[None, :] < bounds[:, None]).to(tl.int32), 1)
    tl.store(starts_ptr + bounds, starts, mask=bounds <= E)
