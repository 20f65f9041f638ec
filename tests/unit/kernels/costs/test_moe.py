"""Bytes and FLOPs of experts equal what counting by hand gives."""

import random

import pytest

from headrace.kernels.costs.moe import (
    ExpertSizes,
    combine_bytes,
    expert_weight_bytes,
    experts_bytes,
    experts_flops,
    mean_experts_hit,
)

SIZES = ExpertSizes(num_experts=8, top_k=2, hidden=16, width=4, row_bytes=4, weight_bytes=1)


def test_bytes_are_those_of_the_tensors() -> None:
    assert expert_weight_bytes(SIZES) == (2 * 4) * 16 + 16 * 4
    assert experts_bytes(3, 5, SIZES) == 5 * expert_weight_bytes(SIZES) + 4 * 16 * (3 + 3 * 2)
    assert combine_bytes(3, SIZES) == 4 * 16 * (3 * 2 + 3 + 3 + 3)


def test_flops_are_two_a_weight_and_pair() -> None:
    weights = expert_weight_bytes(SIZES) // SIZES.weight_bytes
    assert experts_flops(3, SIZES) == 2 * weights * 3 * SIZES.top_k


@pytest.mark.parametrize("num_tokens", [0, 1, 4, 40])
def test_mean_hits_are_those_of_drawn_routings(num_tokens: int) -> None:
    source = random.Random(7)
    drawn = [
        {expert for _ in range(num_tokens) for expert in source.sample(range(8), k=2)}
        for _ in range(4000)
    ]
    mean = sum(len(hit) for hit in drawn) / len(drawn)
    # A standard deviation of at most 1.2 gives the mean one of 0.02.
    assert mean_experts_hit(num_tokens, SIZES) == pytest.approx(mean, abs=0.08)
