"""A product of very few rows, in the interpreter."""

import pytest
import torch

from headrace.kernels.linear.triton_few_rows import FewRowsKnobs, few_rows_knobs, few_rows_linear
from tests.support.kernels_device import normal


@pytest.mark.parametrize("num_rows", [1, 2, 4, 8])
@pytest.mark.parametrize(("columns", "width"), [(1, 16), (33, 100), (130, 640)])
def test_the_product_is_the_librarys(num_rows: int, columns: int, width: int) -> None:
    x, weight = normal(num_rows, width), normal(columns, width, seed=1)
    knobs = FewRowsKnobs(block_n=4)
    product = few_rows_linear(x, weight, knobs=knobs)
    torch.testing.assert_close(product, x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = normal(4, 96), normal(20, 96, seed=1)
    others = x.flip(0).clone()
    others[0] = torch.nan
    assert torch.equal(few_rows_linear(others, weight)[1:], few_rows_linear(x, weight).flip(0)[1:])


def test_a_narrow_weight_gets_more_programs() -> None:
    assert few_rows_knobs(128, 2048).block_n < few_rows_knobs(5120, 2048).block_n
