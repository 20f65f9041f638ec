"""Inputs of the experts' cases fit the reference, and torch's grouped product agrees with it."""

import pytest
import torch

from headrace.bench.device.cases_grouped_experts import (
    CASES,
    decline_grouped_mm,
    expert_sizes,
    make_case,
    prepare_grouped_mm,
)
from headrace.kernels.catalogue import Site
from headrace.kernels.costs.moe import experts_bytes
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_the_grouped_product_computes_what_the_reference_does(num_tokens):
    case = make_case(TINY, num_tokens)
    expected = run_reference(CASES, case)
    (inputs,) = case.inputs("cpu", count=1)
    actual = prepare_grouped_mm(inputs)()
    assert actual.shape == (num_tokens * TINY.top_k, TINY.hidden)
    torch.testing.assert_close(actual, expected, rtol=5e-2, atol=2e-2)


def test_bytes_count_the_experts_that_were_hit():
    (inputs,) = make_case(TINY, 3).inputs("cpu", count=1)
    num_hit = len(set(inputs.args[1].ids_TK.flatten().tolist()))
    assert inputs.num_bytes == experts_bytes(3, num_hit, expert_sizes(TINY))


def test_one_token_hits_its_own_experts_and_the_case_says_so():
    case = make_case(TINY, 1)
    (inputs,) = case.inputs("cpu", count=1)
    assert inputs.num_bytes == pytest.approx(case.num_bytes)


def test_the_baseline_runs_where_torch_has_a_kernel():
    assert "9.0" in str(decline_grouped_mm(Site()))
    old = Site(device="cuda", capability=(8, 0), dtype="bfloat16")
    assert "9.0" in str(decline_grouped_mm(old))
    hopper = Site(device="cuda", capability=(9, 0), dtype="bfloat16")
    assert decline_grouped_mm(hopper) is None


def test_draws_differ_and_names_do():
    assert_draws_differ(make_case(TINY, 3))
    assert_draws_differ(make_case(TINY, 3), 2)
    assert_names_are_unique(CASES)
