"""Weighted sum over a token's experts, residual add and norm, in plain torch.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   H = hidden width
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.gate.routing import Routing
from headrace.kernels.norm import add_rms_norm


def combine(
    out_PH: Tensor, routing: Routing, residual_TH: Tensor, weight_H: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Add each token's weighted experts to the stream, and norm it for the next layer.

    Args:
        out_PH: From ``grouped_experts``. Not modified.
        routing: Of the same step.
        residual_TH: The stream, in out's dtype. Not modified.
        weight_H: RMSNorm weight that follows.
        eps: Added to the mean square.

    Returns:
        The normed rows and the new stream. Padding rows keep their stream.

    Numerics:
        Weights and sum in fp32, in the order of the token's experts; one rounding of the sum, then
        as ``add_rms_norm``. Row-local.

    Cost:
        Memory bound: reads P*H and T*H elements, writes 2*T*H.
    """
    num_tokens, top_k = routing.ids_TK.shape
    out_TKH = out_PH.view(num_tokens, top_k, out_PH.shape[1])
    parts_TKH = out_TKH.float() * routing.weights_TK[:, :, None]
    # 0 * NaN is NaN: rows that nobody wrote may hold anything.
    parts_TKH = torch.where(routing.ids_TK[:, :, None] >= 0, parts_TKH, 0.0)
    sum_TH = parts_TKH[:, 0]
    for part_TH in parts_TKH.unbind(1)[1:]:
        sum_TH = sum_TH + part_TH
    return add_rms_norm(sum_TH.to(residual_TH.dtype), residual_TH, weight_H, eps=eps)
