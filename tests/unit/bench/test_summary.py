"""Figures of a load follow from its answers; the comparison knows its own noise."""

import pytest

from headrace.bench.client import Outcome
from headrace.bench.summary import Slo, compare, describe, summarise, to_row


def outcome(sent_s: float, ttft_s: float, gap_s: float) -> Outcome:
    tokens = 5
    first_s = sent_s + ttft_s
    return Outcome(
        sent_s=sent_s,
        first_s=first_s,
        last_s=first_s + gap_s * (tokens - 1),
        num_tokens=tokens,
        gaps_s=[gap_s] * (tokens - 1),
    )


SLO = Slo(ttft_s=0.5, itl_s=0.05)


def test_percentiles_rates_and_goodput():
    answers = [outcome(i * 0.1, 0.1, 0.01) for i in range(8)]
    answers += [outcome(0.8, 0.9, 0.01), outcome(0.9, 0.1, 0.06)]
    summary = summarise(answers, SLO)
    assert (summary.num_requests, summary.num_tokens, summary.num_good) == (10, 50, 8)
    assert summary.ttft_ms[0] == pytest.approx(100.0)
    assert summary.ttft_ms[2] > 800.0
    assert summary.itl_ms[0] == pytest.approx(10.0)
    assert summary.tokens_per_s == pytest.approx(50 / summary.took_s)
    assert summary.goodput == pytest.approx(8 / summary.took_s)
    row = to_row(summary, case="64")
    assert (row["bench"], row["unit"], row["good_requests"]) == ("serve", "tokens/s", 8)
    assert "8 of 10 kept ttft <= 0.5 s" in describe(summary, SLO)


def test_failed_answers_count_as_sent_and_are_named():
    lost = Outcome(sent_s=0.0, last_s=1.0, error="nobody answers")
    summary = summarise([lost, outcome(0.0, 0.1, 0.01)], SLO)
    assert (summary.num_requests, summary.num_good) == (2, 1)
    assert summary.errors == {"nobody answers": 1}
    assert "1 failed: nobody answers" in describe(summary, SLO)
    assert summarise([lost], SLO).ttft_ms == (0.0, 0.0, 0.0)


def test_the_comparison_decides_only_beyond_its_noise():
    def load(ttft_s: float):
        return summarise([outcome(i * 0.01, ttft_s, 0.01) for i in range(100)], SLO)

    good, bad = load(0.1), load(0.9)
    assert compare(good, bad).startswith("Split: it serves")
    assert compare(bad, good).startswith("Do not split: it serves 100% fewer")
    assert compare(good, load(0.101)).startswith("Either: goodput differs by")
