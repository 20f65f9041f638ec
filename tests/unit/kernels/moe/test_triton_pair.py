"""Experts of single pairs, in the interpreter, against the plain ones."""

import pytest
import torch

from headrace.kernels.moe import grouped_reference
from headrace.kernels.moe.triton_pair import PairKnobs, grouped_experts
from tests.support.kernels_device import experts, normal, one_expert, real_pairs, routing_of

KNOBS = PairKnobs(held=256)


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1, 1), (2, 2), (2, 1), (2, 0), (0, 0)])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (48, 40), (40, 72)])
def test_the_rows_are_the_references(
    num_tokens: int, num_rows: int, hidden: int, width: int
) -> None:
    routing = routing_of(num_tokens, 8, 4, num_rows=num_rows)
    x, weights = normal(num_tokens, hidden), experts(8, hidden, width)
    kept = real_pairs(routing)
    expected = grouped_reference.grouped_experts(x, routing, *weights)[kept]
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS)[kept], expected)


def test_an_expert_that_both_tokens_chose_serves_both() -> None:
    routing, x, weights = one_expert(2, 4), normal(2, 32), experts(4, 32, 16)
    expected = grouped_reference.grouped_experts(x, routing, *weights)
    torch.testing.assert_close(grouped_experts(x, routing, *weights, knobs=KNOBS), expected)


def test_a_row_does_not_depend_on_its_neighbour() -> None:
    routing, x, weights = routing_of(2, 8, 2), normal(2, 32), experts(8, 32, 16)
    alone = grouped_experts(x, routing, *weights)
    x[1:] = torch.nan
    assert torch.equal(grouped_experts(x, routing, *weights)[:2], alone[:2])
