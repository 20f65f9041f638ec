"""Inputs of routing's cases fit the reference."""

from headrace.bench.device.cases_route import CASES, make_case
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)

CASE = make_case(TINY, 5)


def test_inputs_fit_the_reference():
    routing = run_reference(CASES, CASE)
    assert routing.ids_TK.shape == (5, TINY.top_k)


def test_the_bytes_are_those_of_the_tensors():
    (inputs,) = CASE.inputs("cpu", count=1)
    made = run_reference(CASES, CASE)
    tensors = (inputs.args[0], made.weights_TK, made.ids_TK, made.order_P, made.starts_E1)
    assert CASE.num_bytes == sum(tensor.nbytes for tensor in tensors)


def test_draws_differ_and_names_do():
    assert_draws_differ(CASE)
    assert_names_are_unique(CASES)
