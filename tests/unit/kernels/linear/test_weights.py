import pytest
import torch

from headrace.kernels.linear import Products, bind_dense, bind_split, choose_products
from headrace.kernels.tree import tree_sum
from tests.support.kernels_checks import assert_as_accurate, assert_bits_equal, random

WAYS = sorted({Products.WIDENED, choose_products(torch.bfloat16, exact=True)})
each_way = pytest.mark.parametrize("products", WAYS)
BF16 = torch.bfloat16


@each_way
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 16, 50])
def test_error_is_at_most_twice_the_librarys(products: Products, has_bias: bool, rows: int) -> None:
    weight, x = random(96, 80, dtype=BF16), random(rows, 80, seed=1, dtype=BF16)
    bias = random(96, seed=2, dtype=BF16) if has_bias else None

    def library(dtype: torch.dtype) -> torch.Tensor:
        wide = None if bias is None else bias.to(dtype)
        return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), wide)

    out = bind_dense(weight, bias, products=products, exact=True)(x)
    assert out.dtype == BF16
    assert_as_accurate(out, reference=library(torch.float64), library=library(BF16))


@each_way
def test_a_row_does_not_depend_on_the_others_nor_on_a_split_of_the_columns(
    products: Products,
) -> None:
    weight, x = random(96, 80, dtype=BF16), random(50, 80, seed=1, dtype=BF16)

    def product(rows: slice, columns: slice) -> torch.Tensor:
        dense = bind_dense(weight[columns], None, products=products, exact=True)
        return dense(x[rows], out_dtype=torch.float32)

    whole = product(slice(None), slice(None))
    for rows in (slice(0, 1), slice(3, 5), slice(7, 40)):
        for columns in (slice(0, 96), slice(32, 96), slice(48, 64)):
            assert_bits_equal(product(rows, columns), whole[rows, columns])


@each_way
@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_ranks_that_share_a_split_finish_to_the_same_bits(products: Products, rows: int) -> None:
    weight, x = random(96, 64, dtype=BF16), random(rows, 64, seed=1, dtype=BF16)
    whole = bind_split(weight, 4, products=products, exact=True)(x)
    assert whole.dtype == torch.float32
    for ranks in (2, 4):
        parts = [
            bind_split(columns.contiguous(), 4 // ranks, products=products, exact=True)(part)
            for columns, part in zip(weight.chunk(ranks, 1), x.chunk(ranks, 1), strict=True)
        ]
        assert_bits_equal(tree_sum(torch.stack(parts)), whole)


@pytest.mark.parametrize("products", Products)
def test_inexact_products_are_close(products: Products) -> None:
    dtype = products.row_dtype(BF16, exact=False)
    weight, x = random(96, 64, dtype=BF16), random(9, 64, seed=1, dtype=dtype)
    expected = x.double() @ weight.double().t()
    for out in (
        bind_dense(weight, None, products=products, exact=False)(x),
        bind_split(weight, 4, products=products, exact=False)(x),
    ):
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.05)
