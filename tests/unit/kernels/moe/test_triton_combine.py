"""The combine kernel, in the interpreter, against the plain one."""

import pytest
import torch

from headrace.kernels.moe import combine_reference, triton_combine
from tests.support.kernels_device import normal, routing_of


@pytest.mark.parametrize(("num_tokens", "num_rows", "hidden"), [(0, 0, 16), (1, 1, 40), (6, 4, 48)])
def test_the_result_is_the_references(num_tokens: int, num_rows: int, hidden: int) -> None:
    routing = routing_of(num_tokens, 8, 3, num_rows=num_rows)
    out = normal(3 * num_tokens, hidden)
    out[3 * num_rows :] = torch.nan
    routing.weights_TK[num_rows:] = torch.nan
    inputs = (out, routing, normal(num_tokens, hidden, seed=1), normal(hidden, seed=2))
    expected = combine_reference.combine(*inputs, eps=1e-6)
    for result, plain in zip(triton_combine.combine(*inputs, eps=1e-6), expected, strict=True):
        torch.testing.assert_close(result, plain)


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    routing, out, residual = routing_of(5, 8, 3), normal(15, 40), normal(5, 40, seed=1)
    weight = normal(40, seed=2)
    together = triton_combine.combine(out, routing, residual, weight, eps=1e-6)
    out[3:], residual[1:] = torch.nan, torch.inf
    beside = triton_combine.combine(out, routing, residual, weight, eps=1e-6)
    for before, after in zip(together, beside, strict=True):
        assert torch.equal(after[0], before[0])
