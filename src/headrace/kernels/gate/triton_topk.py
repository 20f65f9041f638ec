"""Top-k of the gate in Triton: a program a token.

Shape letters: T = tokens   E = experts   K = experts per token
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def topk_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    num_rows_ptr,
    logits_stride,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_PADDING: tl.constexpr,
):
    """Write a token's experts, best first, and their weights."""
    token = tl.program_id(0)
    experts = tl.arange(0, E_PAD)
    places = tl.arange(0, K_PAD)
    logits = tl.load(
        logits_ptr + token * logits_stride + experts, mask=experts < E, other=float("-inf")
    ).to(tl.float32)
    best = tl.max(logits, 0)
    total = tl.sum(tl.exp(logits - best), 0)
    chosen_total = 0.0
    weights = tl.zeros([K_PAD], tl.float32)
    ids = tl.full([K_PAD], -1, tl.int32)
    for place in tl.static_range(K):
        top = tl.max(logits, 0)
        # The lowest id among equals; nothing equals NaN, and then the last expert it is.
        expert = tl.min(tl.where(logits == top, experts, E - 1), 0)
        weight = tl.exp(top - best)
        chosen_total += weight
        weights = tl.where(places == place, weight, weights)
        ids = tl.where(places == place, expert, ids)
        logits = tl.where(experts == expert, float("-inf"), logits)
    if RENORMALIZE:
        total = chosen_total
    if HAS_PADDING:
        ids = tl.where(token < tl.load(num_rows_ptr), ids, -1)
    out = token * K + places
    tl.store(weights_ptr + out, weights / total, mask=places < K)
    tl.store(ids_ptr + out, ids, mask=places < K)
