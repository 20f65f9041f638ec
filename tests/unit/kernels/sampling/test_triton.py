"""The launches as a whole; what is drawn is compared in ``test_family.py``."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.sampling import DeviceSampled
from headrace.kernels.sampling.triton import device_sample
from tests.support.kernels_sampling import OPTIONS, Case, check_distribution


def test_logits_that_do_not_fit_are_refused() -> None:
    batch = Case.of(OPTIONS[:2]).on_device()
    for logits_BV in (torch.zeros(5, 1000), torch.zeros(2, 999), torch.zeros(1000, 2).T):
        with pytest.raises(ValueError, match="do not fit a batch of 4 rows over 1000 tokens"):
            device_sample(logits_BV, batch)


def test_rows_of_a_wider_buffer_are_read_in_place() -> None:
    case = Case.of(OPTIONS[:4])
    buffer = torch.full((4, 1500), float("nan"))
    buffer[:, :1000] = case.logits()
    came = device_sample(buffer[:, :1000], case.on_device())
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(case.logits()).tolist()


def test_half_precision_logits_are_widened_first() -> None:
    case = Case.of(OPTIONS[:8])
    logits_BV = case.logits().half()
    came = device_sample(logits_BV, case.on_device())
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(logits_BV).tolist()


def test_scratch_of_the_last_step_does_not_matter() -> None:
    case = Case.of(OPTIONS)
    batch, fresh = case.on_device(), case.on_device()
    device_sample(case.logits(5).round(), batch)
    batch.positions_B.copy_(fresh.positions_B)
    batch.seen.seen_PV.copy_(fresh.seen.seen_PV)
    out = DeviceSampled.empty(len(OPTIONS), device="cpu")
    device_sample(case.logits(), batch, out=out)
    assert torch.equal(out.token_ids_B, device_sample(case.logits(), fresh).token_ids_B)


def test_a_few_draws_follow_their_probabilities() -> None:
    check_distribution(device_sample, {"temperature": 0.6}, 6, num_draws=150)
