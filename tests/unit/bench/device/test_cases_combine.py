"""Inputs of the weighted sum's cases fit the reference."""

from headrace.bench.device.cases_combine import CASES, make_case
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)

CASE = make_case(TINY, 5)


def test_inputs_fit_the_reference():
    normed, stream = run_reference(CASES, CASE)
    assert normed.shape == stream.shape == (5, TINY.hidden)


def test_the_bytes_are_those_of_the_rows():
    (inputs,) = CASE.inputs("cpu", count=1)
    parts, _, residual, _ = inputs.args
    assert CASE.num_bytes == parts.nbytes + 3 * residual.nbytes


def test_draws_differ_and_names_do():
    assert_draws_differ(CASE)
    assert_draws_differ(CASE, 2)
    assert_names_are_unique(CASES)
