"""Top-k of the gate in Triton: a program a token.

Shape letters: T = tokens   E = experts   K = experts per token
"""

from __future__ import annotations

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before
from headrace.kernels.gate.triton_choose import choose_experts


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
    RENORMALIZE: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Write a token's experts, best first, and their weights."""
    let_next_begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, E_PAD)
    wait_for_before(CHAINED)
    logits = tl.load(logits_ptr + token * logits_stride + experts, mask=experts < E, other=0.0)
    places, weights = choose_experts(
        logits.to(tl.float32)[None, :], experts, E, K, RENORMALIZE, logits.dtype == tl.bfloat16
    )
    ids = experts
    if HAS_PADDING:
        ids = tl.where(token < tl.load(num_rows_ptr), ids, -1)
    out = token * K + places
    tl.store(weights_ptr + out, weights, mask=places < K)
    tl.store(ids_ptr + out, tl.broadcast_to(ids[None, :], out.shape), mask=places < K)
