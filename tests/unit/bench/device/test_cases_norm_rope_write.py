"""Inputs of the fused write's cases fit the reference and go to slots of their own."""

from headrace.bench.device.cases_norm_rope_write import BLOCK_SIZE, CASES, make_case
from headrace.bench.device.draws import Draws
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)

CASE = make_case(TINY, BLOCK_SIZE + 1, num_positions=50)


def test_inputs_fit_the_reference():
    assert run_reference(CASES, CASE).shape == (BLOCK_SIZE + 1, TINY.num_heads, TINY.head_dim)


def test_every_row_has_a_slot_of_its_own_inside_the_pool():
    args = CASE.build(Draws("cpu", seed=3)).args
    slots, pool = args[5], args[6]
    assert len(set(slots.tolist())) == len(slots)
    assert 0 <= slots.min() <= slots.max() < pool.shape[2] * pool.shape[3]


def test_draws_differ_and_names_do():
    assert_draws_differ(CASE)
    assert_draws_differ(CASE, 5)
    assert_names_are_unique(CASES)
