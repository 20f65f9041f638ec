"""Cases of ``combine``: results of decode steps and of a prompt.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   H = hidden width
"""

from __future__ import annotations

from functools import partial

from headrace.bench.device.case import Case, FamilyCases, Inputs
from headrace.bench.device.cases_grouped_experts import expert_sizes, random_routing
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import MODELS, STEP_TOKENS, ModelShape
from headrace.kernels.costs.moe import combine_bytes
from headrace.kernels.moe.family import COMBINE

EPS = 1e-6


def make_case(shape: ModelShape, num_tokens: int) -> Case:
    """Add up the experts of ``num_tokens`` tokens."""
    return Case(
        name=f"{shape.name}/t{num_tokens}",
        sizes=shape.site_sizes(num_tokens=num_tokens),
        num_bytes=combine_bytes(num_tokens, expert_sizes(shape)),
        num_flops=0,
        build=partial(_build, shape, num_tokens),
    )


def _build(shape: ModelShape, num_tokens: int, draws: Draws) -> Inputs:
    return Inputs(
        args=(
            draws.normal(num_tokens * shape.top_k, shape.hidden),
            random_routing(shape, num_tokens, draws),
            draws.normal(num_tokens, shape.hidden),
            draws.normal(shape.hidden),
        ),
        kwargs={"eps": EPS},
    )


CASES = FamilyCases(
    family=COMBINE,
    cases=tuple(make_case(shape, tokens) for shape in MODELS for tokens in STEP_TOKENS),
)
