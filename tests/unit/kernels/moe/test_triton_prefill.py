"""Experts for many tokens, in the interpreter, against the plain ones."""

import pytest
import torch

from headrace.kernels.moe import grouped_reference
from headrace.kernels.moe.triton_prefill import PrefillKnobs, grouped_experts
from tests.support.kernels_device import experts, normal, one_expert, real_pairs, routing_of

KNOBS = PrefillKnobs(block_m=16, block_i=16, block_n=32, block_k=32)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "num_experts", "top_k"),
    [(0, 0, 8, 2), (1, 1, 8, 2), (50, 50, 8, 2), (30, 21, 12, 3)],
)
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (48, 40)])
def test_the_rows_are_the_references(
    num_tokens: int, num_rows: int, num_experts: int, top_k: int, hidden: int, width: int
) -> None:
    routing = routing_of(num_tokens, num_experts, top_k, num_rows=num_rows)
    x, weights = normal(num_tokens, hidden), experts(num_experts, hidden, width)
    kept = real_pairs(routing)
    expected = grouped_reference.grouped_experts(x, routing, *weights)[kept]
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS)[kept], expected)


@pytest.mark.parametrize("num_tokens", [15, 16, 17, 48])
def test_all_tokens_of_one_expert_fill_whole_tiles_and_part_of_one(num_tokens: int) -> None:
    routing, x, weights = one_expert(num_tokens, 4), normal(num_tokens, 32), experts(4, 32, 16)
    expected = grouped_reference.grouped_experts(x, routing, *weights)
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS), expected)


@pytest.mark.parametrize("num_rows", [0, 1, 5, 6])
def test_garbage_in_padding_reaches_no_real_row(num_rows: int) -> None:
    routing, weights = routing_of(6, 8, 2, num_rows=num_rows), experts(8, 32, 16)
    x = normal(6, 32)
    clean = grouped_experts(x, routing, *weights, knobs=KNOBS)
    x[num_rows:] = torch.nan
    kept = real_pairs(routing)
    assert torch.equal(grouped_experts(x, routing, *weights, knobs=KNOBS)[kept], clean[kept])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    routing, x, weights = routing_of(20, 8, 2), normal(20, 32), experts(8, 32, 16)
    alone = grouped_experts(x, routing, *weights, knobs=KNOBS)
    x[1:] = normal(19, 32, seed=9)
    assert torch.equal(grouped_experts(x, routing, *weights, knobs=KNOBS)[:2], alone[:2])
