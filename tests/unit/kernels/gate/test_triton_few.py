"""Routing of few tokens in one program equals routing in two kernels."""

import pytest
import torch

from headrace.kernels.gate import route_reference, triton
from tests.support.kernels_device import normal


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 8])
@pytest.mark.parametrize(("num_experts", "top_k"), [(8, 1), (12, 3), (128, 8)])
def test_few_tokens_are_routed_as_many_are(num_tokens: int, num_experts: int, top_k: int) -> None:
    logits = normal(num_tokens, num_experts).round()  # with ties
    rows = torch.tensor([num_tokens - 1], dtype=torch.int32)
    few = triton.route(logits, top_k=top_k, renormalize=True, num_rows_1=rows)
    plain = route_reference.route(logits, top_k=top_k, renormalize=True, num_rows_1=rows)
    assert torch.equal(few.ids_TK, plain.ids_TK)
    assert torch.equal(few.order_P, plain.order_P)
    assert torch.equal(few.starts_E1, plain.starts_E1)
    torch.testing.assert_close(few.weights_TK, plain.weights_TK)
