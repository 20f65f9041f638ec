"""Inputs of the narrow products' cases fit the reference; weights are met cold."""

import pytest

from headrace.bench.device.cases_narrow_linear import CASES, make_cases
from headrace.bench.device.timing import L2_BYTES, num_sets
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)

PAIR = make_cases(TINY, 2)


def test_inputs_fit_the_reference():
    gate, out = (run_reference(CASES, case) for case in PAIR)
    assert gate.shape == (2, TINY.num_experts)
    assert out.shape == (2, TINY.hidden)


@pytest.mark.parametrize("case", PAIR, ids=["gate", "out"])
def test_sizes_name_the_weight_and_bytes_are_those_of_the_tensors(case):
    (inputs,) = case.inputs("cpu", count=1)
    x, weight = inputs.args
    assert case.sizes["weight_elements"] == weight.numel()
    assert case.num_bytes == x.nbytes + weight.nbytes + run_reference(CASES, case).nbytes


def test_a_rotation_of_the_real_weights_exceeds_the_cache():
    for case in CASES.cases:
        assert num_sets(case.num_bytes, most=case.max_sets) * case.num_bytes > 3 * L2_BYTES


def test_draws_differ_and_names_do():
    assert_draws_differ(PAIR[0])
    assert_names_are_unique(CASES)
