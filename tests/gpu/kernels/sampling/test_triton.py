"""Device sampling at the size of a real vocabulary: the CPU's tokens, captured in a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from headrace.kernels.sampling import DEVICE_SAMPLE, DeviceSampled
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton import device_sample
from headrace.kernels.sampling.workspace import SamplingKnobs
from tests.support.kernels_sampling import FILTERS, OPTIONS, Case, check_distribution

VOCAB_SIZE = 151_936
KNOBS = SamplingKnobs()
# More candidates than the list holds, in every way there is.
SEARCHED: tuple[dict[str, Any], ...] = (
    {"top_k": 5000},
    {"top_k": 20_000, "top_p": 0.9, "temperature": 2.0},
    {"top_p": 0.99, "temperature": 5.0},
    {"min_p": 1e-4, "temperature": 3.0},
    {"top_p": 0.9, "temperature": 4.0, "presence_penalty": 1.0, "logit_bias": {9: 20.0}},
)


def logits_of(case: Case, seed: int = 0, *, is_tied: bool = False) -> torch.Tensor:
    logits_BV = case.logits(seed).cuda()
    return (logits_BV * 8).round() / 8 if is_tied else logits_BV


@contextmanager
def no_host_sync() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [OPTIONS * 3, SEARCHED], ids=["mixed", "searched"])
def test_tokens_are_those_of_the_cpu(options, dtype: torch.dtype, is_tied: bool) -> None:
    case = Case.of(options, vocab_size=VOCAB_SIZE, first_seed=11)
    logits_BV = logits_of(case, is_tied=is_tied).to(dtype)
    batch = case.on_device("cuda", knobs=KNOBS)
    came = device_sample(logits_BV, batch)
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(logits_BV).tolist()
    expected_BV = torch.log_softmax(logits_BV.double(), dim=-1)
    expected_B = expected_BV.gather(1, came.token_ids_B[:, None])[:, 0].float()
    torch.testing.assert_close(came.logprob_B, expected_B, rtol=1e-6, atol=4e-6)


def test_rows_that_filter_little_are_searched() -> None:
    case = Case.of(SEARCHED, vocab_size=VOCAB_SIZE)
    batch = case.on_device("cuda", knobs=KNOBS)
    device_sample(logits_of(case), batch)
    states = batch.workspace.row_ints_B[: len(SEARCHED), ws.STATE].tolist()
    assert states == [ws.WHOLE_ROW] * len(SEARCHED)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 20, "top_p": 0.95}])
def test_the_greatest_batch_draws_what_the_cpu_draws(options: dict[str, Any]) -> None:
    case = Case.of([options] * 256, vocab_size=VOCAB_SIZE)
    batch = case.on_device("cuda", knobs=KNOBS, capacity=256)
    came = device_sample(logits_of(case), batch)
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(case.logits()).tolist()


def test_reference_draws_the_same_without_a_host_sync() -> None:
    case = Case.of(OPTIONS, vocab_size=VOCAB_SIZE)
    logits_BV = logits_of(case)
    batch = case.on_device("cuda", knobs=KNOBS)
    with no_host_sync():
        came = DEVICE_SAMPLE.variant("reference").load()(logits_BV, batch)
    assert came.token_ids_B.tolist() == case.tokens_on_cpu(logits_BV).tolist()


def test_a_graph_serves_any_mixture_and_advances_by_itself() -> None:
    shapes = [OPTIONS, OPTIONS[::-1], ({"temperature": 0.0},) * 3, SEARCHED]
    first = Case.of(OPTIONS, vocab_size=VOCAB_SIZE)
    batch = first.on_device("cuda", knobs=KNOBS, capacity=len(OPTIONS))
    logits_BV = logits_of(first)
    out = DeviceSampled.empty(len(OPTIONS), device="cuda", dtype=torch.int32)
    device_sample(logits_BV, batch, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a host sync in here would be an error
        device_sample(logits_BV, batch, out=out)
    for number, options in enumerate(shapes):
        case = Case.of(options, vocab_size=VOCAB_SIZE, first_seed=number)
        # The same settings elsewhere, whose slots this batch borrows.
        fresh = case.on_device("cuda", knobs=KNOBS, capacity=len(OPTIONS))
        eager = case.on_device("cuda", knobs=KNOBS, capacity=len(OPTIONS))
        batch.settings_BW.copy_(fresh.settings_BW)
        batch.bias_tokens_BM.copy_(fresh.bias_tokens_BM)
        batch.bias_values_BM.copy_(fresh.bias_values_BM)
        batch.seen.seen_PV.copy_(fresh.seen.seen_PV)
        for step in range(3):
            logits_BV.copy_(logits_of(first, seed=10 * number + step))
            graph.replay()
            expected = device_sample(logits_BV, eager)
            assert out.token_ids_B.tolist() == expected.token_ids_B.tolist()
            assert torch.equal(out.ok_B, expected.ok_B)
            assert torch.equal(out.logprob_B, expected.logprob_B)
        assert torch.equal(batch.settings_BW, eager.settings_BW)
        assert torch.equal(batch.seen.seen_PV, eager.seen.seen_PV)


def test_rows_do_not_depend_on_place_or_neighbours() -> None:
    case = Case.of(OPTIONS, vocab_size=VOCAB_SIZE)
    logits_BV = logits_of(case)
    whole = device_sample(logits_BV, case.on_device("cuda", knobs=KNOBS))
    order = [(7 * i + 3) % len(OPTIONS) for i in range(len(OPTIONS))]
    others_BV = logits_BV[order].clone()
    others_BV[::2] = float("nan")
    came = device_sample(others_BV, case.on_device("cuda", knobs=KNOBS, order=order))
    assert came.ok_B.tolist() == [bool(place % 2) for place in range(len(OPTIONS))]
    for place in range(1, len(OPTIONS), 2):
        assert came.token_ids_B[place] == whole.token_ids_B[order[place]]
        assert came.logprob_B[place] == whole.logprob_B[order[place]]


def test_repeated_draws_are_the_same_in_every_bit() -> None:
    case = Case.of([*OPTIONS, *SEARCHED], vocab_size=VOCAB_SIZE)
    logits_BV = logits_of(case)
    came = [device_sample(logits_BV, case.on_device("cuda", knobs=KNOBS)) for _ in range(5)]
    for each in came[1:]:
        assert torch.equal(each.token_ids_B, came[0].token_ids_B)
        assert torch.equal(each.logprob_B, came[0].logprob_B)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_unhealthy_logit_anywhere_is_seen(value: float) -> None:
    columns = (0, 4095, 4096, VOCAB_SIZE - 1)
    case = Case.of([OPTIONS[i % 5] for i in range(8)], vocab_size=VOCAB_SIZE)
    logits_BV = logits_of(case)
    expected = case.tokens_on_cpu(logits_BV).tolist()
    for row, column in zip((0, 2, 4, 6), columns, strict=True):
        logits_BV[row, column] = value
        expected[row] = 0
    came = device_sample(logits_BV, case.on_device("cuda", knobs=KNOBS))
    assert came.ok_B.tolist() == [False, True] * 4
    assert came.token_ids_B.tolist() == expected


def test_padding_alone_draws_nothing() -> None:
    batch = Case.of([], vocab_size=VOCAB_SIZE).on_device("cuda", knobs=KNOBS, capacity=16)
    came = device_sample(torch.full((16, VOCAB_SIZE), float("nan"), device="cuda"), batch)
    assert not came.token_ids_B.any()
    assert came.ok_B.all()
    assert not batch.settings_BW.any()


def test_all_logits_equal_keeps_the_lowest_ids() -> None:
    options = ({"temperature": 0.0}, {"top_k": 3}, {"top_k": 700}, {"top_p": 0.001})
    case = Case.of(options, vocab_size=VOCAB_SIZE)
    logits_BV = torch.ones(4, VOCAB_SIZE, device="cuda")
    tokens = device_sample(logits_BV, case.on_device("cuda", knobs=KNOBS)).token_ids_B.tolist()
    assert tokens == case.tokens_on_cpu(logits_BV).tolist()
    assert all(token < most for token, most in zip(tokens, (1, 3, 700, 152), strict=True))


@pytest.mark.parametrize(("options", "kept"), FILTERS)
def test_draws_follow_the_softmax_of_what_the_filters_keep(
    options: dict[str, Any], kept: int
) -> None:
    check_distribution(device_sample, options, kept, num_draws=20_000, device="cuda")
