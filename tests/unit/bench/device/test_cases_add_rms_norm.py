"""Inputs of the fused norm's cases fit the reference, and torch's operators agree with it."""

import torch

from headrace.bench.device.cases_add_rms_norm import CASES, make_case
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


def test_the_baseline_computes_the_same():
    (inputs,) = CASE.inputs("cpu", count=1)
    pairs = zip(CASES.baselines[0].prepare(inputs)(), run_reference(CASES, CASE), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_draws_differ_and_names_do():
    assert_draws_differ(CASE)
    assert_draws_differ(CASE, 1)
    assert_names_are_unique(CASES)


def test_the_bytes_are_those_of_the_tensors():
    (inputs,) = CASE.inputs("cpu", count=1)
    x, residual, weight = inputs.args
    assert CASE.num_bytes == 2 * (x.nbytes + residual.nbytes) + weight.nbytes
