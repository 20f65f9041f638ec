"""Routing in Triton: one launch for very few tokens, two for more.

Shape letters: T = tokens   E = experts   K = experts per token   P = T * K pairs
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from headrace.kernels.chain import launch
from headrace.kernels.gate.routing import Routing
from headrace.kernels.gate.triton_few import route_few_kernel
from headrace.kernels.gate.triton_group import group_kernel
from headrace.kernels.gate.triton_topk import topk_kernel

# Up to here one program compares all pairs with each other, and with all experts.
MAX_FEW_TOKENS, MAX_FEW_PAIRS, MAX_FEW_EXPERTS = 8, 64, 512

# Pairs that a program looks at in one go.
MAX_BLOCK_PAIRS = 4096


def route(
    logits_TE: Tensor, *, top_k: int, renormalize: bool, num_rows_1: Tensor | None = None
) -> Routing:
    """Route as ``route_reference.route``.

    Cost:
        Two kernels, or one. The second has every expert's program read all pair ids: E * P * 8
        bytes from L2, some microseconds for a decode step and some tens for a long prompt.
    """
    num_tokens, num_experts = logits_TE.shape
    num_pairs = num_tokens * top_k
    routing = Routing(
        weights_TK=logits_TE.new_empty((num_tokens, top_k), dtype=torch.float32),
        ids_TK=logits_TE.new_empty((num_tokens, top_k), dtype=torch.int32),
        order_P=logits_TE.new_empty(num_pairs, dtype=torch.int32),
        starts_E1=logits_TE.new_empty(num_experts + 1, dtype=torch.int32),
    )
    if num_tokens == 0:
        routing.starts_E1.zero_()
        return routing
    if (
        num_tokens <= MAX_FEW_TOKENS
        and num_pairs <= MAX_FEW_PAIRS
        and num_experts <= MAX_FEW_EXPERTS
    ):
        _launch_few(logits_TE, routing, num_rows_1, renormalize=renormalize)
    else:
        _launch_two(logits_TE, routing, num_rows_1, renormalize=renormalize)
    return routing


def _launch_few(
    logits_TE: Tensor, routing: Routing, num_rows_1: Tensor | None, *, renormalize: bool
) -> None:
    (num_tokens, num_experts), top_k = logits_TE.shape, routing.ids_TK.shape[1]
    launch(
        route_few_kernel,
        (1,),
        logits_TE,
        routing.weights_TK,
        routing.ids_TK,
        routing.order_P,
        routing.starts_E1,
        routing.ids_TK if num_rows_1 is None else num_rows_1,
        logits_TE.stride(0),
        T=num_tokens,
        T_PAD=triton.next_power_of_2(num_tokens),
        E=num_experts,
        E_PAD=triton.next_power_of_2(num_experts),
        STARTS_PAD=triton.next_power_of_2(num_experts + 1),
        K=top_k,
        P_PAD=triton.next_power_of_2(num_tokens * top_k),
        RENORMALIZE=renormalize,
        HAS_PADDING=num_rows_1 is not None,
        num_warps=triton.next_power_of_2(num_tokens),
    )


def _launch_two(
    logits_TE: Tensor, routing: Routing, num_rows_1: Tensor | None, *, renormalize: bool
) -> None:
    (num_tokens, num_experts), num_pairs = logits_TE.shape, len(routing.order_P)
    launch(
        topk_kernel,
        (num_tokens,),
        logits_TE,
        routing.weights_TK,
        routing.ids_TK,
        routing.ids_TK if num_rows_1 is None else num_rows_1,
        logits_TE.stride(0),
        E=num_experts,
        E_PAD=triton.next_power_of_2(num_experts),
        K=routing.ids_TK.shape[1],
        RENORMALIZE=renormalize,
        HAS_PADDING=num_rows_1 is not None,
        num_warps=1,
    )
    block = min(MAX_BLOCK_PAIRS, max(128, triton.next_power_of_2(num_pairs)))
    launch(
        group_kernel,
        (num_experts + 1,),
        routing.ids_TK,
        routing.order_P,
        routing.starts_E1,
        num_pairs,
        E=num_experts,
        BLOCK_P=block,
        num_warps=max(1, min(8, block // 256)),
    )
