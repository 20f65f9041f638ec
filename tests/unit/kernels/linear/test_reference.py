import pytest
import torch
import torch.nn.functional as F

from headrace.kernels.linear import leaf_products, linear, pad_rows
from headrace.kernels.tree import tree_sum
from tests.support.kernels_checks import DTYPES, assert_as_accurate, assert_bits_equal, random

SHAPES = [(160, 512), (16, 160), (48, 36), (1000, 200), (513, 64)]


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17])
def test_rows_are_padded_with_zeros_to_a_multiple_of_16(rows: int) -> None:
    padded = pad_rows(random(rows, 3, dtype=torch.bfloat16))
    assert padded.dtype == torch.float32
    assert padded.shape[0] == -(-rows // 16) * 16
    assert not padded[rows:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "columns"), SHAPES)
def test_error_is_at_most_twice_the_librarys(dtype: torch.dtype, inner: int, columns: int) -> None:
    x, weight = random(37, inner, dtype=dtype), random(columns, inner, seed=1, dtype=dtype)
    bias = random(columns, seed=2, dtype=dtype)
    assert_as_accurate(
        linear(x, weight.float(), bias.float()),
        reference=F.linear(x.double(), weight.double(), bias.double()),
        library=F.linear(x, weight, bias),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "columns"), SHAPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, inner: int, columns: int) -> None:
    x, weight = random(300, inner, dtype=dtype), random(columns, inner, seed=1)
    whole = linear(x, weight)
    shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    assert_bits_equal(linear(x[shuffled], weight), whole[shuffled])
    for start, stop in [(0, 1), (7, 8), (16, 33), (100, 200), (299, 300)]:
        assert_bits_equal(linear(x[start:stop], weight), whole[start:stop])


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_columns_do_not_depend_on_their_split(shards: int) -> None:
    x, weight = random(33, 160), random(128, 160, seed=1)
    parts = [linear(x, part) for part in weight.chunk(shards)]
    assert_bits_equal(torch.cat(parts, dim=1), linear(x, weight))


@pytest.mark.parametrize("exact", [True, False])
def test_no_rows_give_no_rows(exact: bool) -> None:
    y = linear(random(0, 8), random(32, 8), exact=exact)
    assert y.shape == (0, 32)
    assert leaf_products(random(0, 4, 8), random(4, 8, 16), exact=exact).shape == (4, 0, 16)


def test_inexact_products_are_the_librarys() -> None:
    x, weight = random(5, 64, dtype=torch.bfloat16), random(32, 64, seed=1, dtype=torch.bfloat16)
    assert_bits_equal(linear(x, weight, exact=False), F.linear(x, weight))


@pytest.mark.parametrize("exact", [True, False])
def test_leaves_sum_to_the_product(exact: bool) -> None:
    x, weight = random(21, 4 * 24), random(48, 4 * 24, seed=1)
    leaves = weight.unflatten(1, (4, 24)).permute(1, 2, 0).contiguous()
    total = tree_sum(leaf_products(x.view(21, 4, 24), leaves, exact=exact))
    assert_as_accurate(
        total,
        reference=F.linear(x.double(), weight.double()),
        library=F.linear(x, weight),
    )


def test_a_leaf_does_not_depend_on_the_other_leaves_or_rows() -> None:
    x, leaves = random(40, 8, 32), random(8, 32, 48, seed=1)
    whole = leaf_products(x, leaves)
    assert_bits_equal(leaf_products(x[:, 2:4], leaves[2:4]), whole[2:4])
    assert_bits_equal(leaf_products(x[17:18], leaves), whole[:, 17:18])
