"""Device cases small enough for a CPU, and what must hold of any of them."""

from __future__ import annotations

from typing import Any

import torch

from headrace.bench.device.case import REFERENCE, Case, FamilyCases
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import ModelShape

TINY = ModelShape(
    name="tiny",
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=8,
    top_k=2,
    expert_width=32,
    vocab_size=300,
)


def run_reference(cases: FamilyCases, case: Case) -> Any:
    """Build a case's inputs on the CPU and give them to the family's reference."""
    inputs = case.build(Draws("cpu", seed=0))
    return cases.family.variant(REFERENCE).load()(*inputs.args, **inputs.kwargs)


def assert_draws_differ(case: Case, tensor: int = 0) -> None:
    """Hold the sets of a rotation apart, equal seeds together, and all of them finite."""
    first, second = case.inputs("cpu", count=2)
    again = case.build(Draws("cpu", seed=0))
    one, two, three = (inputs.args[tensor] for inputs in (first, second, again))
    assert torch.isfinite(one).all()
    assert (one != 0).any()
    assert torch.equal(one, three)
    assert not torch.equal(one, two)
    assert all(
        a is not b
        for a, b in zip(first.args, second.args, strict=True)
        if isinstance(a, torch.Tensor)
    )


def assert_names_are_unique(cases: FamilyCases) -> None:
    """Hold names of cases and of kernels apart: rows are told by them."""
    names = [case.name for case in cases.cases]
    kernels = [each.name for each in (*cases.family.variants, *cases.baselines)]
    assert len(set(names)) == len(names)
    assert len(set(kernels)) == len(kernels)
    assert set(cases.compared_with) <= set(kernels)
    assert cases.uncaptured <= set(kernels)
