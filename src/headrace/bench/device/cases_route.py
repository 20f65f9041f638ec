"""Cases of ``route``: gate logits of decode steps and of a prompt.

Shape letters: T = tokens   E = experts
"""

from __future__ import annotations

from functools import partial

from headrace.bench.device.case import Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import QWEN3_30B_A3B, STEP_TOKENS, ModelShape
from headrace.kernels.costs.gate import route_bytes
from headrace.kernels.gate.family import ROUTE


def make_case(shape: ModelShape, num_tokens: int) -> Case:
    """Route ``num_tokens`` tokens of a model."""
    return Case(
        name=f"e{shape.num_experts}-k{shape.top_k}/t{num_tokens}",
        sizes=shape.site_sizes(num_tokens=num_tokens),
        num_bytes=route_bytes(num_tokens, num_experts=shape.num_experts, top_k=shape.top_k),
        num_flops=0,
        build=partial(_build, shape, num_tokens),
    )


def _build(shape: ModelShape, num_tokens: int, draws: Draws) -> Inputs:
    return Inputs(
        args=(draws.normal(num_tokens, shape.num_experts),),
        kwargs={"top_k": shape.top_k, "renormalize": True},
    )


# Both models have the same gate but for its input, which routing does not see.
CASES = FamilyCases(
    family=ROUTE, cases=tuple(make_case(QWEN3_30B_A3B, tokens) for tokens in STEP_TOKENS)
)
