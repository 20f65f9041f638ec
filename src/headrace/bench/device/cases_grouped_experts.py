"""Cases of ``grouped_experts``: decode steps that read a few experts, and a prompt that fills all.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.bench.device.case import Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import MODELS, STEP_TOKENS, ModelShape
from headrace.bench.device.timing import Call
from headrace.kernels.catalogue import Site
from headrace.kernels.costs.moe import (
    ExpertSizes,
    experts_bytes,
    experts_flops,
    mean_experts_hit,
)
from headrace.kernels.gate.route_reference import route
from headrace.kernels.gate.routing import Routing
from headrace.kernels.moe.family import GROUPED_EXPERTS


def make_case(shape: ModelShape, num_tokens: int) -> Case:
    """Run a model's experts on ``num_tokens`` tokens, routed by random logits."""
    sizes = expert_sizes(shape)
    return Case(
        name=f"{shape.name}/t{num_tokens}",
        sizes=shape.site_sizes(num_tokens=num_tokens),
        num_bytes=experts_bytes(num_tokens, mean_experts_hit(num_tokens, sizes), sizes),
        num_flops=experts_flops(num_tokens, sizes),
        build=partial(_build, shape, num_tokens),
    )


def expert_sizes(shape: ModelShape) -> ExpertSizes:
    """Return what costs are computed from."""
    return ExpertSizes(
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        hidden=shape.hidden,
        width=shape.expert_width,
    )


def random_routing(shape: ModelShape, num_tokens: int, draws: Draws) -> Routing:
    """Route random logits: each token to different experts, all of them equally liked."""
    logits_TE = draws.normal(num_tokens, shape.num_experts)
    return route(logits_TE, top_k=shape.top_k, renormalize=True)


def _build(shape: ModelShape, num_tokens: int, draws: Draws) -> Inputs:
    experts, hidden, width = shape.num_experts, shape.hidden, shape.expert_width
    routing = random_routing(shape, num_tokens, draws)
    num_hit = int((routing.starts_E1.diff() > 0).sum())
    return Inputs(
        args=(
            draws.normal(num_tokens, hidden),
            routing,
            draws.normal(experts, 2 * width, hidden, scale=hidden**-0.5),
            draws.normal(experts, hidden, width, scale=width**-0.5),
        ),
        # Few tokens hit a number of experts that varies a lot from draw to draw.
        num_bytes=experts_bytes(num_tokens, num_hit, expert_sizes(shape)),
    )


def decline_grouped_mm(site: Site) -> str | None:
    """Decline torch's grouped product where it loops over the experts instead."""
    if site.device != "cuda" or site.capability < (9, 0):
        return "torch multiplies in groups from compute capability 9.0 on"
    return None if site.dtype == "bfloat16" else f"takes bfloat16, this is {site.dtype}"


def prepare_grouped_mm(inputs: Inputs) -> Call:
    """Make a call of torch's grouped products, with pairs gathered and put back around them."""
    x_TH, routing, gate_up_EJH, down_EHI = inputs.args
    top_k = routing.ids_TK.shape[1]
    pairs_P = routing.order_P.long()
    tokens_P, stops_E = pairs_P // top_k, routing.starts_E1[1:].contiguous()
    gate_up_EHJ, down_EIH = gate_up_EJH.transpose(1, 2), down_EHI.transpose(1, 2)

    def call() -> Tensor:
        gate_up_PJ = F.grouped_mm(x_TH[tokens_P], gate_up_EHJ, offs=stops_E)
        gate_PI, up_PI = gate_up_PJ.chunk(2, dim=-1)
        sorted_PH = F.grouped_mm(F.silu(gate_PI) * up_PI, down_EIH, offs=stops_E)
        return torch.empty_like(sorted_PH).index_copy_(0, pairs_P, sorted_PH)

    return call


CASES = FamilyCases(
    family=GROUPED_EXPERTS,
    cases=tuple(make_case(shape, tokens) for shape in MODELS for tokens in STEP_TOKENS),
    baselines=(
        Baseline(name="torch_grouped_mm", decline=decline_grouped_mm, prepare=prepare_grouped_mm),
    ),
    compared_with=("torch_grouped_mm", "reference"),
    uncaptured=frozenset({"reference"}),
)
