"""Cases of ``narrow_linear``: the products of a small step that the library is slow at.

Shape letters: T = rows   N = columns   K = inner width
"""

from __future__ import annotations

from functools import partial

from headrace.bench.device.case import Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import MODELS, ModelShape
from headrace.kernels.costs.linear import linear_bytes, linear_flops
from headrace.kernels.linear.family import NARROW_LINEAR

ROWS = (1, 2, 4, 8)
# A gate of half a megabyte has to be met cold, as one of many layers is.
MAX_SETS = 512


def make_cases(shape: ModelShape, num_tokens: int) -> tuple[Case, Case]:
    """Multiply ``num_tokens`` rows by a model's gate, and by its attention's output weight."""
    return (
        _make_case("gate", shape, num_tokens, columns=shape.num_experts, inner=shape.hidden),
        _make_case("out", shape, num_tokens, columns=shape.hidden, inner=shape.query_width),
    )


def _make_case(place: str, shape: ModelShape, num_tokens: int, *, columns: int, inner: int) -> Case:
    return Case(
        name=f"{shape.name}/{place}/t{num_tokens}",
        sizes=shape.site_sizes(num_tokens=num_tokens, weight_elements=columns * inner),
        num_bytes=linear_bytes(num_tokens, columns=columns, inner=inner),
        num_flops=linear_flops(num_tokens, columns=columns, inner=inner),
        build=partial(_build, num_tokens, columns=columns, inner=inner),
        max_sets=MAX_SETS,
    )


def _build(num_tokens: int, draws: Draws, *, columns: int, inner: int) -> Inputs:
    weight_NK = draws.normal(columns, inner, scale=inner**-0.5)
    return Inputs(args=(draws.normal(num_tokens, inner), weight_NK))


# The reference is the library's own product, so there is nothing else to compare with.
CASES = FamilyCases(
    family=NARROW_LINEAR,
    cases=tuple(case for shape in MODELS for rows in ROWS for case in make_cases(shape, rows)),
)
