"""Inputs of prefill attention's cases fit the reference, with a history and without."""

import pytest
import torch

from headrace.bench.device.cases_prefill_attention import CASES, PrefillShape, make_case
from tests.support.device_cases import assert_draws_differ, assert_names_are_unique, run_reference


def case_of(num_cached: int):
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    return make_case(PrefillShape(num_new=20, num_cached=num_cached, block_size=16, **heads))


@pytest.mark.parametrize("num_cached", [0, 13])
def test_inputs_fit_the_reference(num_cached):
    out = run_reference(CASES, case_of(num_cached))
    assert out.shape == (20, 4, 32)
    assert torch.isfinite(out).all()


def test_a_history_costs_bytes_and_operations():
    assert case_of(0).num_flops == 4 * sum(range(1, 21)) * 4 * 32
    assert case_of(13).num_flops == 4 * sum(range(14, 34)) * 4 * 32
    assert case_of(13).num_bytes - case_of(0).num_bytes == 2 * 13 * 2 * 32 * 2


def test_the_named_shapes_are_there():
    names = {case.name for case in CASES.cases}
    assert {"6000on0/h16-1/block64", "2048on4096/h16-1/block128"} <= names


def test_draws_differ_and_names_do():
    assert_draws_differ(case_of(13))
    assert_draws_differ(case_of(13), 1)
    assert_names_are_unique(CASES)
