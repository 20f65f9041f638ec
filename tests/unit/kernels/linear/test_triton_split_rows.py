"""A product of a few rows, its inner width split, in the interpreter."""

import pytest
import torch

from headrace.kernels.linear.triton_split_rows import SplitRowsKnobs, split_rows_linear
from tests.support.kernels_device import normal

KNOBS = SplitRowsKnobs(block_n=32, block_k=64, num_warps=4)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 8, 16])
@pytest.mark.parametrize(("columns", "width"), [(1, 16), (33, 100), (130, 640)])
def test_the_product_is_the_librarys(num_rows: int, columns: int, width: int) -> None:
    x, weight = normal(num_rows, width), normal(columns, width, seed=1)
    product = split_rows_linear(x, weight, knobs=KNOBS)
    torch.testing.assert_close(product, x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = normal(4, 96), normal(20, 96, seed=1)
    others = x.flip(0).clone()
    others[0] = torch.nan
    product, moved = (split_rows_linear(rows, weight, knobs=KNOBS) for rows in (x, others))
    assert torch.equal(moved[1:], product.flip(0)[1:])
