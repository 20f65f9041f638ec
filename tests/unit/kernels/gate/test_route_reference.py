"""Routing sorts every pair by expert, once, and leaves padding out."""

import pytest
import torch

from headrace.kernels.gate.route_reference import route
from tests.support.kernels_device import normal, routing_of


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 50])
def test_every_pair_stands_once_under_its_expert_in_order(num_tokens: int) -> None:
    routing = routing_of(num_tokens, 12, 3)
    ids = routing.ids_TK.flatten()
    assert sorted(routing.order_P.tolist()) == list(range(num_tokens * 3))
    for expert in range(12):
        start, stop = routing.starts_E1[expert : expert + 2].tolist()
        pairs = routing.order_P[start:stop].tolist()
        assert pairs == [pair for pair, each in enumerate(ids.tolist()) if each == expert]


def test_padding_has_no_expert_and_stands_last() -> None:
    routing = routing_of(5, 8, 2, num_rows=3)
    assert (routing.ids_TK[3:] == -1).all()
    assert int(routing.starts_E1[-1]) == 6
    assert routing.order_P[6:].tolist() == [6, 7, 8, 9]


def test_weights_are_softmax_scores_and_sum_to_one_when_renormalised() -> None:
    logits = normal(4, 6)
    scores = torch.softmax(logits, -1).sort(descending=True).values[:, :2]
    plain = route(logits, top_k=2, renormalize=False)
    torch.testing.assert_close(plain.weights_TK, scores)
    shared = route(logits, top_k=2, renormalize=True)
    torch.testing.assert_close(shared.weights_TK.sum(1), torch.ones(4))


def test_equal_logits_go_to_the_lower_id() -> None:
    assert route(torch.zeros(1, 5), top_k=3, renormalize=True).ids_TK.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_garbage_in_padding_has_no_expert_either(num_rows: int) -> None:
    logits = normal(5, 8)
    expected = route(logits, top_k=2, renormalize=True, num_rows_1=torch.tensor([num_rows]))
    logits[num_rows:] = torch.nan
    routing = route(logits, top_k=2, renormalize=True, num_rows_1=torch.tensor([num_rows]))
    assert torch.equal(routing.ids_TK, expected.ids_TK)
    assert torch.equal(routing.order_P, expected.order_P)
    assert torch.equal(routing.starts_E1, expected.starts_E1)
