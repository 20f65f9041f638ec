"""Planted differences are found where they were planted, and equal runs have none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.cli.verify_compare import (
    Comparison,
    KvGap,
    LogitGap,
    TokenGap,
    compare_runs,
    disaggregation_faults,
)
from headrace.core.requests import Ledger
from headrace.engine.pool_view import DIGEST_TOKENS
from tests.support.verify_runs import (
    NUM_PROMPT_TOKENS,
    TOKENS,
    ledger,
    run,
    with_flipped_bit,
    with_kv,
    with_logits,
    with_token,
)


def test_equal_runs_are_identical() -> None:
    comparison = compare_runs(run(), run())
    assert comparison == Comparison(num_compared=len(TOKENS))
    assert comparison.is_identical
    assert comparison.is_within(0.0)


def test_a_planted_token_is_found_at_its_position() -> None:
    comparison = compare_runs(run(), with_token(run(), 2, 4))
    assert comparison.token == TokenGap(position=2, expected=7, got=4)
    assert not comparison.is_identical


def test_what_follows_a_different_token_is_not_compared() -> None:
    other = with_logits(with_token(run(), 1, 4), 2, {0: 99.0})
    comparison = compare_runs(run(), with_kv(other, 1, 0, first_position=2))
    assert comparison.num_compared == 2
    assert (comparison.logits, comparison.kv, comparison.max_abs) == (None, None, 0.0)


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_run_that_ended_earlier_differs_where_it_ended(is_expected: bool) -> None:
    short, whole = run(TOKENS[:3]), run()
    comparison = compare_runs(short, whole) if is_expected else compare_runs(whole, short)
    ids = (None, TOKENS[3]) if is_expected else (TOKENS[3], None)
    assert comparison.token == TokenGap(position=3, expected=ids[0], got=ids[1])
    assert comparison.num_compared == 3


def test_one_flipped_bit_of_one_logit_is_found() -> None:
    comparison = compare_runs(run(), with_flipped_bit(run(), 3, 6))
    assert comparison.logits is not None
    assert (comparison.logits.position, comparison.logits.token_id) == (3, 6)
    assert comparison.logits.num_different == 1
    assert 0 < comparison.max_abs == comparison.logits.max_abs < 1e-6
    assert comparison.token is comparison.kv is None
    assert not comparison.is_identical


def test_zeros_of_unlike_sign_are_not_bit_equal() -> None:
    plus, minus = with_logits(run(), 0, {3: 0.0}), with_logits(run(), 0, {3: -0.0})
    gap = compare_runs(plus, minus).logits
    assert gap == LogitGap(position=0, max_abs=0.0, token_id=3, num_different=1)


def test_the_worst_logit_is_named_and_the_largest_gap_kept() -> None:
    other = with_logits(with_logits(run(), 1, {2: 5.0, 4: -90.0}), 3, {0: 1000.0})
    comparison = compare_runs(run(), other)
    assert comparison.logits is not None
    assert (comparison.logits.position, comparison.logits.token_id) == (1, 4)
    assert comparison.logits.num_different == 2
    assert comparison.max_abs == pytest.approx(1000, rel=0.01)
    row = np.frombuffer(run().logits[3], np.float32)
    assert comparison.max_relative == pytest.approx(comparison.max_abs / np.abs(row).max())
    assert comparison.is_within(comparison.max_relative)


def test_a_nan_is_an_infinite_gap() -> None:
    comparison = compare_runs(run(), with_logits(run(), 0, {5: math.nan}))
    assert comparison.logits is not None
    assert (comparison.logits.token_id, comparison.logits.max_abs) == (5, math.inf)


def test_without_exact_sums_other_tokens_pass_only_with_close_logits() -> None:
    close = with_token(with_logits(run(), 2, {0: 3.7}), 2, 4)
    comparison = compare_runs(run(), close)
    assert not comparison.is_within(0.01)
    assert comparison.is_within(1.0)


def test_planted_kv_is_found_in_its_layer_and_run() -> None:
    comparison = compare_runs(run(), with_kv(run(), 1, 2))
    assert comparison.kv == KvGap(position=0, layer=1, run=2)
    assert comparison.kv.first_token == 32
    assert not comparison.is_identical


def test_the_earliest_step_then_the_lowest_layer_is_the_cause() -> None:
    late = with_kv(run(), 0, 0, first_position=2)
    early = with_kv(with_kv(late, 2, 0, first_position=1), 1, 1, first_position=1)
    assert compare_runs(run(), early).kv == KvGap(position=1, layer=1, run=1)


def test_runs_of_two_models_are_refused() -> None:
    other = run()
    other.logits[0] = bytes(4)  # type: ignore[index]
    with pytest.raises(ValueError, match="rows of 8 and 1 logits"):
        compare_runs(run(), other)


def test_runs_have_the_length_that_ranks_hash() -> None:
    assert KvGap(position=0, layer=0, run=1).first_token == DIGEST_TOKENS


def test_a_disaggregated_request_has_no_fault() -> None:
    assert disaggregation_faults(ledger(), NUM_PROMPT_TOKENS) == []
    cached = Ledger(cached_tokens=39, computed_tokens=1)
    assert disaggregation_faults(cached, NUM_PROMPT_TOKENS) == []


@pytest.mark.parametrize(
    ("ledger", "fault"),
    [
        (Ledger(computed_tokens=40), "40 prompt tokens were computed by the decode rank"),
        (
            Ledger(transferred_tokens=39, computed_tokens=1, bytes_expected=64, bytes_received=63),
            "63 bytes of KV received: expected 64",
        ),
        (Ledger(transferred_tokens=39, computed_tokens=1), "39 tokens transferred, but no byte"),
        (Ledger(cached_tokens=16, computed_tokens=1), "tells of 17 prompt tokens: expected 40"),
    ],
)
def test_a_request_that_was_not_disaggregated_is_told(ledger: Ledger, fault: str) -> None:
    (line,) = disaggregation_faults(ledger, NUM_PROMPT_TOKENS)
    assert fault in line
