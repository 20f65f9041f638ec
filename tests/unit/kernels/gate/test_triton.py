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
