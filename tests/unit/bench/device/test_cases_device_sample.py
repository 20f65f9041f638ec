"""Inputs of sampling's cases fit the reference; torch's operators draw from the same tokens."""

import pytest
import torch

from headrace.bench.device.cases_device_sample import CASES, KINDS, TOP_P, make_case, prepare_torch
from headrace.bench.device.draws import Draws
from headrace.bench.device.timing import fits_cache, num_sets
from headrace.kernels.sampling.device_settings import KIND, RowKind
from tests.support.device_cases import (
    TINY,
    assert_draws_differ,
    assert_names_are_unique,
    run_reference,
)


def case_of(kind: str, num_rows: int = 5):
    return make_case(kind, num_rows, vocab_size=TINY.vocab_size)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_fit_the_reference(kind):
    drawn = run_reference(CASES, case_of(kind))
    assert drawn.ok_B.all()
    assert (drawn.token_ids_B < TINY.vocab_size).all()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("greedy", {RowKind.GREEDY}),
        ("plain", {RowKind.PLAIN}),
        ("top-p", {RowKind.FILTERED}),
        ("mixed", {RowKind.GREEDY, RowKind.PLAIN, RowKind.FILTERED}),
    ],
)
def test_rows_are_of_the_kind_that_the_case_names(kind, expected):
    _, batch = case_of(kind).build(Draws("cpu", seed=0)).args
    assert set(batch.settings_BW[:, KIND].tolist()) == expected


def test_the_greedy_baseline_draws_the_same_tokens():
    inputs = case_of("greedy").build(Draws("cpu", seed=0))
    drawn = run_reference(CASES, case_of("greedy"))
    assert torch.equal(prepare_torch(inputs)(), drawn.token_ids_B)


@pytest.mark.parametrize("kind", ["plain", "top-p", "top-k-top-p", "mixed"])
def test_baselines_draw_likely_tokens(kind):
    torch.manual_seed(0)
    inputs = case_of(kind, 40).build(Draws("cpu", seed=0))
    tokens = prepare_torch(inputs)()
    weights = torch.softmax(inputs.args[0] / 0.6, dim=-1)
    own = weights.gather(1, tokens[:, None])
    mass_above = (weights * (weights > own)).sum(dim=-1)
    assert tokens.shape == (40,)
    assert mass_above.median() < TOP_P
    if kind != "plain":
        assert (mass_above <= TOP_P + 1e-5).all()


@pytest.mark.parametrize(("kind", "most"), [("top-k-top-p", 20), ("top-p", 300)])
def test_the_baseline_keeps_as_many_tokens_as_its_rows_ask_for(kind, most):
    inputs = case_of(kind, 8).build(Draws("cpu", seed=0))
    # Flat enough that tokens past the twentieth are drawn where nothing forbids it.
    logits = inputs.args[0].mul_(0.1)
    call = prepare_torch(inputs)
    torch.manual_seed(0)
    tokens = torch.stack([call() for _ in range(50)], dim=1)
    ranks = (logits[:, None] > logits.gather(1, tokens)[:, :, None]).sum(dim=-1)
    assert ranks.max() < most
    assert (ranks.max() >= 20) == (most > 20)


def test_even_one_row_is_met_cold():
    for case in CASES.cases:
        sets = num_sets(case.num_bytes, most=case.max_sets)
        assert not fits_cache(case.num_bytes, sets), case.name


def test_draws_differ_and_names_do():
    assert_draws_differ(case_of("plain"))
    assert_names_are_unique(CASES)
