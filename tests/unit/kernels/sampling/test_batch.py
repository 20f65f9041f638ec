"""Settings of a batch as tensors: each row lands in the one group that handles it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.batch import SamplingBatch, SamplingRow
from headrace.kernels.sampling.counts import TokenCounts


def row(**options: Any) -> SamplingRow:
    return SamplingRow(params=SamplingParams(max_tokens=1, **options), seed=1, position=4)


def test_rows_are_grouped_by_how_they_draw() -> None:
    rows = [
        row(temperature=0.0, top_k=5),
        row(),
        row(top_k=5, top_p=0.5),
        row(top_p=0.5),
        row(min_p=0.1),
        row(temperature=0.0, logprobs=True, top_logprobs=2),
        row(logit_bias={3: 1.5, 1: -2.0}),
    ]
    batch = SamplingBatch.build(rows)
    assert batch.plain_R.tolist() == [1, 4, 6]
    assert batch.top_k_rows_R.tolist() == [2]
    assert batch.sorted_R.tolist() == [3]
    assert batch.logprobs_R.tolist() == [5]
    assert (batch.max_top_k, batch.max_top_logprobs) == (5, 2)
    assert batch.bias_rows_N.tolist() == [6, 6]
    assert batch.bias_tokens_N.tolist() == [3, 1]
    assert batch.bias_values_N.tolist() == [1.5, -2.0]
    assert not batch.is_plain_greedy


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "logprobs": True}, True),
        ({}, False),
        ({"temperature": 0.0, "logit_bias": {1: 1.0}}, False),
    ],
)
def test_plain_greedy_is_greedy_without_anything_that_moves_logits(
    options: dict[str, Any], want: bool
) -> None:
    assert SamplingBatch.build([row(temperature=0.0), row(**options)]).is_plain_greedy is want


def test_penalties_without_counts_are_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="row 1 has penalties but no token counts"):
        SamplingBatch.build([row(), row(presence_penalty=1.0)])
    params = SamplingParams(max_tokens=1, temperature=0.0, presence_penalty=1.0)
    counts = TokenCounts(8)
    batch = SamplingBatch.build([SamplingRow(params=params, seed=0, position=0, counts=counts)])
    assert batch.penalised_R.tolist() == [0]
    assert not batch.is_plain_greedy


def test_seeds_of_any_size_fit() -> None:
    params = SamplingParams(max_tokens=1)
    seeds = [-1, 1 << 63, (1 << 64) + 5]
    batch = SamplingBatch.build([SamplingRow(params=params, seed=s, position=0) for s in seeds])
    assert batch.seeds_B.tolist() == [-1, -(1 << 63), 5]


def test_positions_move_without_building_again() -> None:
    batch = SamplingBatch.build([row(), row(top_k=2)])
    moved = batch.with_positions(batch.positions_B + 1)
    assert moved.positions_B.tolist() == [5, 5]
    assert batch.positions_B.tolist() == [4, 4]
    assert moved.top_k_rows_R is batch.top_k_rows_R


def test_empty_batch_is_possible() -> None:
    batch = SamplingBatch.build([])
    assert batch.rows == ()
    assert batch.is_plain_greedy
    assert batch.positions_B.dtype == torch.int64
