"""Grouped experts of a routed step in plain torch, on any device.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.gate.routing import Routing


def grouped_experts(
    x_TH: Tensor, routing: Routing, gate_up_EJH: Tensor, down_EHI: Tensor
) -> Tensor:
    """Run every pair's expert on its token: SwiGLU MLPs, not yet weighted.

    Args:
        x_TH: Normed rows. Not modified.
        routing: From the family ``route``.
        gate_up_EJH: Gate rows, then up rows, in x's dtype. Not modified.
        down_EHI: Down projections, likewise.

    Returns:
        ``[P, H]`` in x's dtype, row ``t * K + k`` for token t's k-th expert; rows of pairs without
        an expert hold anything finite or not, and ``combine`` passes over them.

    Numerics:
        fp32 sums; one rounding of the activation and one of the result. A row depends on its own
        token and expert only.

    Cost:
        6*P*H*I FLOPs; reads the weights of the experts that are hit. The reference syncs.
    """
    top_k = routing.ids_TK.shape[1]
    out_PH = x_TH.new_zeros((routing.order_P.shape[0], x_TH.shape[1]))
    bounds = routing.starts_E1.tolist()
    for expert, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if start == stop:
            continue
        pairs = routing.order_P[start:stop].long()
        gate, up = _product(x_TH[pairs // top_k], gate_up_EJH[expert]).chunk(2, dim=-1)
        act = (F.silu(gate) * up).to(x_TH.dtype)
        out_PH[pairs] = _product(act, down_EHI[expert]).to(x_TH.dtype)
    return out_PH


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x.float(), weight.float().t())
