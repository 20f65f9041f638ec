"""Experts for few tokens, in the interpreter, against the plain ones."""

import pytest
import torch

from headrace.kernels.moe import grouped_reference
from headrace.kernels.moe.triton_decode import DecodeKnobs, decode_knobs, grouped_experts
from tests.support.kernels_device import experts, normal, one_expert, real_pairs, routing_of

KNOBS = DecodeKnobs(block_i=16, block_m=32, block_n=16, block_h=32, block_k=32)
# Tokens, real ones, experts, top-k: fewer pairs than experts, as many, more, padding, none real.
CASES = [(1, 1, 16, 4), (4, 4, 16, 4), (9, 7, 8, 2), (40, 40, 4, 2), (3, 0, 8, 2), (0, 0, 8, 2)]


@pytest.mark.parametrize(("num_tokens", "num_rows", "num_experts", "top_k"), CASES)
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (48, 40)])
def test_the_rows_are_the_references(
    num_tokens: int, num_rows: int, num_experts: int, top_k: int, hidden: int, width: int
) -> None:
    routing = routing_of(num_tokens, num_experts, top_k, num_rows=num_rows)
    x, weights = normal(num_tokens, hidden), experts(num_experts, hidden, width)
    kept = real_pairs(routing)
    expected = grouped_reference.grouped_experts(x, routing, *weights)[kept]
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS)[kept], expected)


def test_an_expert_with_more_tokens_than_a_tile_takes_several() -> None:
    routing, x, weights = one_expert(37, 4), normal(37, 32), experts(4, 32, 16)
    expected = grouped_reference.grouped_experts(x, routing, *weights)
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS), expected)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    routing, x, weights = routing_of(6, 8, 2), normal(6, 32), experts(8, 32, 16)
    alone = grouped_experts(x, routing, *weights, knobs=KNOBS)
    x[1:] = normal(5, 32, seed=9)
    assert torch.equal(grouped_experts(x, routing, *weights, knobs=KNOBS)[:2], alone[:2])


def test_only_large_batches_get_wide_tiles() -> None:
    assert decode_knobs(1).block_n == decode_knobs(128).block_n < decode_knobs(256).block_n


@pytest.mark.parametrize("num_rows", [0, 1, 5, 6])
def test_garbage_in_padding_reaches_no_real_row(num_rows: int) -> None:
    routing, weights = routing_of(6, 8, 2, num_rows=num_rows), experts(8, 32, 16)
    x = normal(6, 32)
    clean = grouped_experts(x, routing, *weights, knobs=KNOBS)
    x[num_rows:] = torch.nan
    kept = real_pairs(routing)
    assert torch.equal(grouped_experts(x, routing, *weights, knobs=KNOBS)[kept], clean[kept])
