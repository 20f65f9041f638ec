"""Token counts: incremental equals counted afresh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.counts import TokenCounts, needs_counts

IDS = st.lists(st.integers(0, 9), max_size=20)


@given(IDS, IDS, IDS)
def test_counting_step_by_step_equals_counting_at_once(
    prompt: list[int], first: list[int], second: list[int]
) -> None:
    grown = TokenCounts.of(prompt, first, vocab_size=10)
    for token in second:
        grown.add([token])
    afresh = TokenCounts.of(prompt, first + second, vocab_size=10)
    assert torch.equal(grown.output_V, afresh.output_V)
    assert torch.equal(grown.prompt_V, afresh.prompt_V)
    assert grown.output_V.tolist() == [(first + second).count(i) for i in range(10)]
    assert grown.prompt_V.tolist() == [i in prompt for i in range(10)]


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, False),
        ({"temperature": 0.3, "top_k": 5, "logit_bias": {1: 2.0}}, False),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 1.1}, True),
    ],
)
def test_counts_are_kept_only_for_penalties(options: dict[str, Any], want: bool) -> None:
    assert needs_counts(SamplingParams(max_tokens=1, **options)) is want
