"""Routing in plain torch, on any device.

Shape letters: T = tokens   E = experts   K = experts per token   P = T * K pairs
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.gate.reference import gate_topk
from headrace.kernels.gate.routing import Routing


def route(
    logits_TE: Tensor, *, top_k: int, renormalize: bool, num_rows_1: Tensor | None = None
) -> Routing:
    """Choose each token's experts, and sort the pairs by expert.

    Args:
        logits_TE: Gate logits, any float dtype. Not modified.
        top_k: K, at most E.
        renormalize: Make the chosen scores sum to one.
        num_rows_1: int32 number of rows before the padding; None when all are real.

    Returns:
        The routing, freshly allocated.

    Numerics:
        Softmax and renormalisation in fp32, not rounded. Equal logits go to the lower id.
        Row-local.

    Cost:
        Reads the logits once; sorts P keys. No host sync.
    """
    num_tokens, num_experts = logits_TE.shape
    weights_TK, ids_TK = gate_topk(logits_TE.float(), top_k=top_k, renormalize=renormalize)
    ids_TK = ids_TK.to(torch.int32)
    if num_rows_1 is not None:
        is_row_T1 = torch.arange(num_tokens, device=logits_TE.device)[:, None] < num_rows_1
        ids_TK = torch.where(is_row_T1, ids_TK, -1)
    keys_P = torch.where(ids_TK < 0, num_experts, ids_TK).flatten()
    sorted_P, order_P = keys_P.sort(stable=True)
    bounds_E1 = torch.arange(num_experts + 1, dtype=keys_P.dtype, device=logits_TE.device)
    return Routing(
        weights_TK=weights_TK,
        ids_TK=ids_TK,
        order_P=order_P.to(torch.int32),
        starts_E1=torch.searchsorted(sorted_P, bounds_E1).to(torch.int32),
    )
