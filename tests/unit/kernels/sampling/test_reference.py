"""Drawing tokens: right distributions, right filters, and rows that know nothing of each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.counts import TokenCounts
from headrace.kernels.sampling.logprobs import SampledTokens
from headrace.kernels.sampling.reference import sample

VOCAB = 100
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.1, "logprobs": True, "top_logprobs": 5},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2},
    {"top_k": 3, "logit_bias": {5: 2.0, 7: -100.0}, "logprobs": True},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": True, "top_logprobs": 2},
    {"top_k": 1000, "top_p": 0.5},
)


def row(seed: int = 0, position: int = 4, **options: Any) -> SamplingRow:
    params = SamplingParams(max_tokens=1, **options)
    counts = TokenCounts.of([1, 2, 3], [4, 4], vocab_size=VOCAB)
    return SamplingRow(params=params, seed=seed, position=position, counts=counts)


def results(sampled: SampledTokens) -> list[tuple[int, bool, Any]]:
    return list(
        zip(sampled.token_ids_B.tolist(), sampled.ok_B.tolist(), sampled.logprobs, strict=True)
    )


def draws(logits: list[float], num_draws: int, **options: Any) -> Counter[int]:
    """Draw the same distribution under many fixed seeds."""
    x_BV = torch.tensor(logits).expand(num_draws, -1)
    params = SamplingParams(max_tokens=1, **options)
    rows = [SamplingRow(params=params, seed=seed, position=4) for seed in range(num_draws)]
    batch = SamplingBatch.build(rows)
    return Counter(sample(x_BV, batch).token_ids_B.tolist())


def logits_of(num_rows: int) -> torch.Tensor:
    return 3 * torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(num_rows))


def test_rows_do_not_depend_on_batch_size_or_place() -> None:
    rows = [row(seed=i, position=10 + i, **OPTIONS[i]) for i in range(9)]
    x_BV = logits_of(9)
    alone = [results(sample(x_BV[i : i + 1], SamplingBatch.build([rows[i]])))[0] for i in range(9)]
    for size in range(1, 10):
        for start in range(9):
            order = [(start + i) % 9 for i in range(size)]
            came = results(sample(x_BV[order], SamplingBatch.build([rows[i] for i in order])))
            assert came == [alone[i] for i in order]


def test_rows_do_not_depend_on_their_neighbours() -> None:
    rows = [row(seed=i, **OPTIONS[i]) for i in range(9)]
    x_BV = logits_of(9)
    alone = results(sample(x_BV, SamplingBatch.build(rows)))
    for i in range(9):
        for value in (0.0, 1e30, float("nan")):
            others_BV = torch.full_like(x_BV, value)
            others_BV[i] = x_BV[i]
            neighbours = [row(seed=99, top_k=50, logprobs=True, top_logprobs=20)] * 9
            neighbours[i] = rows[i]
            came = results(sample(others_BV, SamplingBatch.build(neighbours)))
            assert came[i] == alone[i]


def test_a_sequence_resumed_at_any_position_goes_on_as_it_would_have() -> None:
    x_BV = logits_of(6)
    for options in OPTIONS:
        stream = [
            results(sample(x_BV[p : p + 1], SamplingBatch.build([row(5, p, **options)])))[0]
            for p in range(6)
        ]
        for start in range(6):
            rows = [row(5, p, **options) for p in range(start, 6)]
            came = results(sample(x_BV[start:], SamplingBatch.build(rows)))
            assert came == stream[start:]


def test_seeds_and_positions_change_the_draw() -> None:
    seeds = [row(seed, 7) for seed in range(40)]
    positions = [row(7, position) for position in range(40)]
    for rows in (seeds, positions):
        tokens = sample(torch.zeros(40, VOCAB), SamplingBatch.build(rows)).token_ids_B
        assert len(set(tokens.tolist())) > 25


LOGITS = [2.0, 1.0, 1.0, 0.0, -0.5, -3.0]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 6),
        ({"temperature": 0.6}, 6),
        ({"temperature": 2.0}, 6),
        ({"top_k": 3}, 3),
        ({"top_k": 2}, 2),  # equal logits: the lower id stays
        ({"top_k": 99, "min_p": 0.1}, 4),
        ({"min_p": 0.1}, 4),  # weights 1, .37, .37, .14, .08, .007
        ({"top_p": 0.5}, 1),  # probabilities .51, .19, .19, .07, .04, .003
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.88}, 3),
        ({"top_k": 2, "top_p": 0.72}, 1),  # among two: .73 and .27
        ({"top_k": 2, "top_p": 0.74}, 2),
    ],
)
def test_draws_follow_the_softmax_of_what_the_filters_keep(
    options: dict[str, Any], kept: int
) -> None:
    num_draws = 10_000
    counts = draws(LOGITS, num_draws, **options)
    assert set(counts) == set(range(kept))
    scaled = torch.tensor(LOGITS[:kept], dtype=torch.float64) / options.get("temperature", 1.0)
    expected = torch.softmax(scaled, dim=0) * num_draws
    seen = torch.tensor([counts[i] for i in range(kept)])
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    limits = [10.8, 13.8, 16.3, 18.5, 20.5]  # 99.9 % of 1 to 5 degrees of freedom
    assert chi_square < (limits[kept - 2] if kept > 1 else 1e-9)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    x_BV = torch.zeros(3, 1000)
    x_BV[1, [900, 400]] = 1.0
    x_BV[2, 999] = 1.0
    batch = SamplingBatch.build([row(temperature=0.0)] * 3)
    assert sample(x_BV, batch).token_ids_B.tolist() == [0, 400, 999]


def test_greedy_sees_bias_and_penalties() -> None:
    x_BV = torch.zeros(2, VOCAB)
    x_BV[:, 4] = 1.0  # token 4 is in the output twice
    rows = [row(temperature=0.0, frequency_penalty=0.6), row(temperature=0.0, logit_bias={9: 2.0})]
    assert sample(x_BV, SamplingBatch.build(rows)).token_ids_B.tolist() == [0, 9]


def test_vanishing_temperature_is_greedy() -> None:
    x_BV = logits_of(20)
    batch = SamplingBatch.build([row(seed, temperature=1e-300) for seed in range(20)])
    assert torch.equal(sample(x_BV, batch).token_ids_B, x_BV.argmax(dim=-1))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_unhealthy_row_is_flagged_and_harms_nobody(options: dict[str, Any], value: float) -> None:
    x_BV = logits_of(3)
    batch = SamplingBatch.build([row(seed, **options) for seed in range(3)])
    healthy = results(sample(x_BV, batch))
    x_BV[1, 60] = value
    before_BV = x_BV.clone()
    came = results(sample(x_BV, batch))
    assert came[0] == healthy[0]
    assert came[2] == healthy[2]
    assert came[1][1] is False
    assert came[1][2] is None
    assert torch.equal(x_BV.view(torch.int32), before_BV.view(torch.int32))


def test_flagged_row_gives_token_zero() -> None:
    x_BV = torch.full((2, VOCAB), float("nan"))
    batch = SamplingBatch.build([row(temperature=0.0), row(top_k=5, logit_bias={3: 9.0})])
    sampled = sample(x_BV, batch)
    assert sampled.ok_B.tolist() == [False, False]
    assert sampled.token_ids_B.tolist() == [0, 0]


def test_large_batches_are_drawn_in_groups_like_small_ones() -> None:
    x_BV = torch.randn(40, 4096, generator=torch.Generator().manual_seed(3))
    rows = [row(seed) for seed in range(40)]
    whole = sample(x_BV, SamplingBatch.build(rows)).token_ids_B
    for i in (0, 7, 8, 39):
        assert sample(x_BV[i : i + 1], SamplingBatch.build([rows[i]])).token_ids_B[0] == whole[i]


def test_empty_batch_gives_nothing() -> None:
    sampled = sample(torch.zeros(0, VOCAB), SamplingBatch.build([]))
    assert sampled.token_ids_B.shape == (0,)
    assert sampled.logprobs == ()
