"""Every variant of device sampling draws what the CPU draws."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels.catalogue import Site, choose
from headrace.kernels.sampling import DEVICE_SAMPLE, DeviceSampled, sample
from headrace.kernels.sampling.device_seen import output_counts
from headrace.kernels.sampling.device_settings import SLOT
from headrace.kernels.sampling.workspace import SamplingKnobs
from tests.support.kernels_sampling import OPTIONS, OUTPUT_IDS, Case

VARIANTS = [variant.name for variant in DEVICE_SAMPLE.variants]


@pytest.fixture(params=VARIANTS)
def draw(request: pytest.FixtureRequest):
    """Return a variant's function."""
    return DEVICE_SAMPLE.variant(request.param).load()


@pytest.mark.parametrize("vocab_size", [1000, 257, 20])
def test_tokens_are_those_of_the_cpu(draw, vocab_size: int) -> None:
    options = [each for each in OPTIONS if "logit_bias" not in each or vocab_size > 900]
    case = Case.of(options, vocab_size=vocab_size, first_seed=vocab_size)
    for logits_BV in (case.logits(1), case.logits(2).round()):  # round: many equal logits
        came = draw(logits_BV, case.on_device())
        assert came.token_ids_B.tolist() == case.tokens_on_cpu(logits_BV).tolist()
        assert came.ok_B.all()
        expected_BV = torch.log_softmax(logits_BV.double(), dim=-1)
        expected_B = expected_BV.gather(1, came.token_ids_B[:, None])[:, 0].float()
        torch.testing.assert_close(came.logprob_B, expected_B, rtol=0, atol=2e-6)


def test_steps_follow_each_other_without_the_host(draw) -> None:
    case = Case.of([OPTIONS[5], {"top_k": 5, "presence_penalty": 3.0}, {}], vocab_size=60)
    batch, on_cpu = case.on_device(), case.on_cpu()
    for step in range(4):
        logits_BV = case.logits(step, scale=1.0)
        tokens_B = draw(logits_BV, batch).token_ids_B
        came = sample(logits_BV, on_cpu.with_positions(torch.arange(3) + 4 + step))
        assert tokens_B.tolist() == came.token_ids_B.tolist()
        for row, token in zip(on_cpu.rows, tokens_B.tolist(), strict=True):
            assert row.counts is not None
            row.counts.add([token])
        assert batch.positions_B.tolist() == [5 + step, 6 + step, 7 + step, 0, 0]
    words_V = batch.seen.seen_PV[int(batch.settings_BW[0, SLOT])]
    assert int(output_counts(words_V).sum()) == len(OUTPUT_IDS) + 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_unhealthy_rows_are_flagged_and_harm_nobody(draw, value: float) -> None:
    case = Case.of(OPTIONS[:10])
    logits_BV = case.logits()
    expected = case.tokens_on_cpu(logits_BV).tolist()
    bad = [0, 1, 2, 5, 7, 9]  # with all rows that have penalties
    for i, column in zip(bad, (999, 0, 255, 256, 1, 500), strict=True):
        logits_BV[i, column] = value
        expected[i] = 0
    batch = case.on_device()
    seen_PV = batch.seen.seen_PV.clone()
    came = draw(logits_BV, batch)
    assert came.token_ids_B.tolist() == expected
    assert (~came.ok_B).nonzero()[:, 0].tolist() == bad
    assert came.logprob_B[bad].tolist() == [0.0] * 6
    moved = [i for i in range(10) if int(batch.positions_B[i]) != 4 + i]
    assert moved == [i for i in range(10) if i not in bad]
    assert torch.equal(batch.seen.seen_PV, seen_PV)


def test_rows_do_not_depend_on_place_or_neighbours(draw) -> None:
    case = Case.of(OPTIONS)
    logits_BV = case.logits()
    whole = draw(logits_BV, case.on_device())
    order = [(7 * i + 3) % len(OPTIONS) for i in range(len(OPTIONS))]
    others_BV = logits_BV[order].clone()
    others_BV[::2] = float("nan")
    came = draw(others_BV, case.on_device(order=order))
    for place, i in enumerate(order):
        if place % 2:
            assert came.token_ids_B[place] == whole.token_ids_B[i]
            assert came.logprob_B[place] == whole.logprob_B[i]


def test_padding_draws_nothing_whatever_its_logits_hold(draw) -> None:
    case = Case.of(OPTIONS[:3])
    batch = case.on_device()
    logits_BV = torch.full((5, 1000), float("nan"))
    logits_BV[:3] = case.logits()
    came = draw(logits_BV, batch)
    assert came.token_ids_B.tolist() == [*case.tokens_on_cpu(logits_BV[:3]).tolist(), 0, 0]
    assert came.ok_B.all()
    assert came.logprob_B[3:].tolist() == [0.0, 0.0]
    assert batch.positions_B[3:].tolist() == [0, 0]


def test_results_go_where_they_are_wanted(draw) -> None:
    case = Case.of(OPTIONS[:3])
    out = DeviceSampled.empty(3, device="cpu", dtype=torch.int32)
    assert draw(case.logits(), case.on_device(), out=out) is out
    assert out.token_ids_B.tolist() == case.tokens_on_cpu(case.logits()).tolist()


def test_an_empty_batch_gives_nothing(draw) -> None:
    assert draw(torch.zeros(0, 1000), Case.of([]).on_device()).token_ids_B.shape == (0,)


def test_triton_says_why_it_declines() -> None:
    reasons = choose(DEVICE_SAMPLE, Site()).declined
    assert reasons == (("triton", "needs a CUDA device, this is cpu"),)
    huge = Site(sizes={"vocab_size": 1 << 21})
    assert "1048576 tokens" in choose(DEVICE_SAMPLE, huge).declined[0][1]


def test_knobs_do_not_change_what_is_drawn() -> None:
    case = Case.of(OPTIONS)
    draw = DEVICE_SAMPLE.variant("triton").load()
    default = draw(case.logits(), case.on_device(knobs=SamplingKnobs())).token_ids_B
    assert default.tolist() == draw(case.logits(), case.on_device()).token_ids_B.tolist()
