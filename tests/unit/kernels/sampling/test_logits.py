"""Bias and penalties, against the same sums written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.counts import TokenCounts
from headrace.kernels.sampling.logits import adjust_logits, finite_rows

VOCAB = 6


def row(prompt: list[int], output: list[int], **options: Any) -> SamplingRow:
    params = SamplingParams(max_tokens=1, **options)
    counts = TokenCounts.of(prompt, output, vocab_size=VOCAB)
    return SamplingRow(params=params, seed=0, position=0, counts=counts)


def by_hand(
    logits: list[float], row: SamplingRow, prompt: list[int], output: list[int]
) -> list[float]:
    params = row.params
    out = []
    for token, x in enumerate(logits):
        x += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            x = x / params.repetition_penalty if x > 0 else x * params.repetition_penalty
        x -= params.frequency_penalty * output.count(token)
        x -= params.presence_penalty * (token in output)
        out.append(x)
    return out


IDS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@given(
    IDS,
    IDS,
    st.sampled_from([0.0, 0.5, -1.5]),
    st.sampled_from([0.0, 0.25, -2.0]),
    st.sampled_from([1.0, 2.0, 0.5]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1.5]), max_size=3),
)
def test_adjusted_logits_equal_those_by_hand(
    prompt: list[int],
    output: list[int],
    presence: float,
    frequency: float,
    repetition: float,
    bias: dict[int, float],
) -> None:
    logits = [-2.0, -0.5, 0.0, 0.25, 1.0, 4.0]  # powers of two: the sums are exact
    changed = row(
        prompt,
        output,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=bias,
    )
    batch = SamplingBatch.build([row([], []), changed])
    came = adjust_logits(torch.tensor([logits, logits]), batch)
    assert came[0].tolist() == logits
    assert came[1].tolist() == by_hand(logits, changed, prompt, output)


def test_nothing_asked_for_is_nothing_done() -> None:
    logits_BV = torch.zeros(1, VOCAB)
    assert adjust_logits(logits_BV, SamplingBatch.build([row([1], [2])])) is logits_BV


def test_raw_logits_are_not_modified() -> None:
    logits_BV = torch.ones(1, VOCAB)
    batch = SamplingBatch.build([row([1], [2], presence_penalty=1.0, logit_bias={3: 2.0})])
    adjust_logits(logits_BV, batch)
    assert logits_BV.tolist() == [[1.0] * VOCAB]


def test_counts_are_read_at_each_call() -> None:
    changing = row([], [], frequency_penalty=1.0)
    batch = SamplingBatch.build([changing])
    assert changing.counts is not None
    changing.counts.add([4, 4])
    assert adjust_logits(torch.zeros(1, VOCAB), batch)[0].tolist() == [0, 0, 0, 0, -2, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rows_with_any_non_finite_logit_are_found(value: float) -> None:
    for place in range(17):
        logits_BV = torch.zeros(3, 17)
        logits_BV[1, place] = value
        assert finite_rows(logits_BV).tolist() == [True, False, True]
