"""Alternatives on the device are those of the CPU."""

from __future__ import annotations

import torch

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling import SamplingBatch, SamplingRow, sample
from headrace.kernels.sampling.device_logprobs import device_top_logprobs


def test_alternatives_are_those_of_the_cpu() -> None:
    x_RV = (torch.randn(5, 300, generator=torch.Generator().manual_seed(1)) * 4).round() / 4
    params = SamplingParams(max_tokens=1, logprobs=True, top_logprobs=20)
    batch = SamplingBatch.build([SamplingRow(params=params, seed=0, position=0)] * 5)
    ids_RN, logprobs_RN = device_top_logprobs(x_RV, num_top=20)
    for r, entry in enumerate(sample(x_RV, batch).logprobs):
        assert entry is not None
        assert ids_RN[r].tolist() == [token for token, _ in entry.top]
        expected = torch.tensor([value for _, value in entry.top])
        torch.testing.assert_close(logprobs_RN[r], expected, rtol=0, atol=1e-6)


def test_equal_logits_are_listed_by_id() -> None:
    ids_RN, _ = device_top_logprobs(torch.zeros(1, 30), num_top=4)
    assert ids_RN.tolist() == [[0, 1, 2, 3]]
