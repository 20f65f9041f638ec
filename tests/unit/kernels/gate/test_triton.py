"""The routing kernels, in the interpreter, make exactly the reference's routing."""

import pytest
import torch

from headrace.kernels.gate import route_reference, triton
from tests.support.kernels_device import normal

SHAPES = [(0, 8, 2), (1, 16, 4), (7, 12, 3), (40, 16, 4), (300, 16, 2)]


@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), SHAPES)
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_routing_is_the_references(
    num_tokens: int, num_experts: int, top_k: int, renormalize: bool
) -> None:
    logits = normal(num_tokens, num_experts)
    expected = route_reference.route(logits, top_k=top_k, renormalize=renormalize)
    routing = triton.route(logits, top_k=top_k, renormalize=renormalize)
    assert torch.equal(routing.ids_TK, expected.ids_TK)
    assert torch.equal(routing.order_P, expected.order_P)
    assert torch.equal(routing.starts_E1, expected.starts_E1)
    torch.testing.assert_close(routing.weights_TK, expected.weights_TK)


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
@pytest.mark.parametrize("num_rows", [0, 1, 6, 7])
def test_padding_is_the_references_whatever_its_logits_hold(num_rows: int) -> None:
    logits = normal(7, 12)
    logits[num_rows:] = torch.nan
    rows = torch.tensor([num_rows], dtype=torch.int32)
    routing = triton.route(logits, top_k=3, renormalize=True, num_rows_1=rows)
    logits[num_rows:] = 0.0
    expected = route_reference.route(logits, top_k=3, renormalize=True, num_rows_1=rows)
    assert torch.equal(routing.ids_TK, expected.ids_TK)
    assert torch.equal(routing.order_P, expected.order_P)
    assert torch.equal(routing.starts_E1, expected.starts_E1)


@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_equal_logits_send_every_token_to_the_lowest_ids(top_k: int) -> None:
    assert_same_pairs(torch.zeros(5, 8), top_k=top_k)


def test_a_lone_expert_takes_everything() -> None:
    routing = triton.route(normal(3, 1), top_k=1, renormalize=True)
    assert routing.order_P.tolist() == [0, 1, 2]
    assert routing.starts_E1.tolist() == [0, 3]
    assert torch.equal(routing.weights_TK, torch.ones(3, 1))


@pytest.mark.parametrize("num_tokens", [63, 64, 65, 129])
def test_pairs_may_fill_a_block_exactly_or_pass_it(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    monkeypatch.setattr(triton, "MAX_BLOCK_PAIRS", 128)
    assert_same_pairs(normal(num_tokens, 4), top_k=2)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits, order = normal(6, 12), torch.tensor([3, 5, 0, 1, 4, 2])
    together = triton.route(logits, top_k=3, renormalize=True)
    moved = triton.route(logits[order], top_k=3, renormalize=True)
    assert torch.equal(moved.ids_TK, together.ids_TK[order])
    assert torch.equal(moved.weights_TK, together.weights_TK[order])


def assert_same_pairs(logits: torch.Tensor, *, top_k: int) -> None:
    expected = route_reference.route(logits, top_k=top_k, renormalize=True)
    routing = triton.route(logits, top_k=top_k, renormalize=True)
    assert torch.equal(routing.ids_TK, expected.ids_TK)
    assert torch.equal(routing.order_P, expected.order_P)
    assert torch.equal(routing.starts_E1, expected.starts_E1)
