"""Combine in Triton: a program a token.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   H = hidden width
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.chain import launch, let_next_begin, wait_for_before
from headrace.kernels.gate.routing import Routing


@triton.jit
def combine_kernel(
    out_ptr,
    weights_ptr,
    ids_ptr,
    residual_ptr,
    norm_ptr,
    normed_ptr,
    stream_ptr,
    eps,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Sum a token's experts, add the stream, norm.

    Reads the weight of the norm before it waits.
    """
    let_next_begin(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_H)
    is_in = columns < H
    norm = tl.load(norm_ptr + columns, mask=is_in, other=0.0).to(tl.float32)
    wait_for_before(CHAINED)
    places = tl.arange(0, K_PAD)
    is_place = places < K
    pairs = token * K + places
    # All loads before any use: a chain of dependent ones is what this kernel would take.
    residual = tl.load(residual_ptr + token * H + columns, mask=is_in, other=0.0)
    ids = tl.load(ids_ptr + pairs, mask=is_place, other=-1)
    weights = tl.load(weights_ptr + pairs, mask=is_place, other=0.0)
    parts = tl.load(
        out_ptr + pairs[:, None] * H + columns[None, :],
        mask=is_place[:, None] & is_in[None, :],
        other=0.0,
    ).to(tl.float32)
    # What nobody wrote may be anything, and its weight too.
    is_pair = ids[:, None] >= 0
    total = tl.sum(tl.where(is_pair, parts * weights[:, None], 0.0), 0)
    dtype = residual.dtype
    # bf16 sums are fp32 sums rounded; the cast after each keeps the reference's roundings.
    stream = (residual.to(tl.float32) + total.to(dtype).to(tl.float32)).to(dtype)
    tl.store(stream_ptr + token * H + columns, stream, mask=is_in)
    x = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    normed = (x * scale).to(dtype).to(tl.float32) * norm
    tl.store(normed_ptr + token * H + columns, normed.to(dtype), mask=is_in)


def combine(
    out_PH: Tensor, routing: Routing, residual_TH: Tensor, weight_H: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Combine as ``combine_reference.combine``, in one launch."""
    num_tokens, top_k = routing.ids_TK.shape
    hidden = residual_TH.shape[1]
    normed_TH, stream_TH = torch.empty_like(residual_TH), torch.empty_like(residual_TH)
    if num_tokens:
        launch(
            combine_kernel,
            (num_tokens,),
            out_PH,
            routing.weights_TK,
            routing.ids_TK,
            residual_TH,
            weight_H,
            normed_TH,
            stream_TH,
            eps,
            H=hidden,
            BLOCK_H=triton.next_power_of_2(hidden),
            K=top_k,
            K_PAD=triton.next_power_of_2(top_k),
            num_warps=8,
        )
    return normed_TH, stream_TH
