"""Log-probabilities come from the raw logits, whatever moved the draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.logprobs import log_sum_exp, token_logprobs
from headrace.kernels.sampling.reference import sample


def row(**options: Any) -> SamplingRow:
    return SamplingRow(params=SamplingParams(max_tokens=1, **options), seed=3, position=2)


@pytest.mark.parametrize("width", [1, 2, 4096])
def test_log_sum_exp_is_accurate_and_row_independent(width: int) -> None:
    x_RV = 10 * torch.randn(6, width, generator=torch.Generator().manual_seed(0))
    came_R = log_sum_exp(x_RV)
    assert torch.allclose(came_R, torch.logsumexp(x_RV.double(), dim=-1), rtol=0, atol=1e-9)
    for i in range(6):
        assert torch.equal(log_sum_exp(x_RV[i : i + 1]), came_R[i : i + 1])


def test_logprobs_are_those_of_the_models_own_distribution() -> None:
    x_BV = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    options = {"logprobs": True, "top_logprobs": 3}
    moved = row(temperature=0.2, top_k=2, logit_bias={7: 50.0}, **options)
    sampled = sample(x_BV, SamplingBatch.build([row(temperature=0.0, **options), moved]))
    want_BV = torch.log_softmax(x_BV.double(), dim=-1)
    assert sampled.token_ids_B[1] == 7
    for i, entry in enumerate(sampled.logprobs):
        assert entry is not None
        assert entry.token_id == sampled.token_ids_B[i]
        assert entry.logprob == pytest.approx(float(want_BV[i, entry.token_id]), abs=1e-9)
        best = torch.topk(want_BV[i], 3)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-9)


def test_each_row_gets_as_many_alternatives_as_it_asked_for() -> None:
    rows = [
        row(logprobs=True),
        row(logprobs=True, top_logprobs=1),
        row(top_logprobs=4),
        row(logprobs=True, top_logprobs=20),
    ]
    sampled = sample(torch.zeros(4, 8), SamplingBatch.build(rows))
    assert [entry and len(entry.top) for entry in sampled.logprobs] == [0, 1, None, 8]


def test_equal_logits_are_listed_by_id() -> None:
    sampled = sample(torch.zeros(1, 8), SamplingBatch.build([row(logprobs=True, top_logprobs=4)]))
    (entry,) = sampled.logprobs
    assert entry is not None
    assert [token for token, _ in entry.top] == [0, 1, 2, 3]


def test_unhealthy_rows_report_nothing() -> None:
    batch = SamplingBatch.build([row(logprobs=True), row(logprobs=True)])
    sampled = token_logprobs(
        torch.zeros(2, 4),
        torch.tensor([1, 0]),
        ok_B=torch.tensor([True, False]),
        batch=batch,
    )
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[1] is None
