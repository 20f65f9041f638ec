from dataclasses import replace

import pytest
import torch

from headrace.core.sharding import Role, Sharding
from headrace.kernels.linear import Products
from headrace.kernels.tree import tree_sum
from headrace.models.setup import ModelSetup, Weights
from headrace.models.shard import shard_of
from tests.support.kernels_checks import assert_bits_equal, random
from tests.support.models_builders import tiny_config


def weights_of(dtype: torch.dtype, *, exact: bool = True) -> Weights:
    config = tiny_config()
    setup = ModelSetup(
        config=config,
        shard=shard_of(config, Sharding(), Role.MONO, rank=0),
        dtype=dtype,
        exact=exact,
    )
    names = {"a": random(6, 8), "b": random(2, 8, seed=1), "c": random(6), "d": random(2)}
    return Weights(names, setup)


@pytest.mark.parametrize("exact", [True, False])
def test_weights_are_rounded_to_the_model_dtype_before_anything(exact: bool) -> None:
    weights = weights_of(torch.bfloat16, exact=exact)
    rounded = weights.tensors["a"].to(torch.bfloat16)
    assert_bits_equal(weights.stored("a"), rounded)
    assert_bits_equal(weights.row("a"), rounded.to(weights.setup.row_dtype))
    x = random(3, 8, seed=2, dtype=weights.setup.row_dtype)
    expected = x.double() @ rounded.double().t()
    torch.testing.assert_close(weights.dense("a")(x).double(), expected, rtol=0.02, atol=0.02)


def test_what_needs_no_change_is_not_copied() -> None:
    weights = weights_of(torch.float32)
    assert weights.row("a") is weights.tensors["a"]
    assert weights.dense("a").weight_NK is weights.tensors["a"]


def test_joined_weights_are_stacked_rows_with_their_biases() -> None:
    weights = weights_of(torch.float32)
    x = random(3, 8, seed=2)
    biases = torch.cat((weights.tensors["c"], weights.tensors["d"]))
    joined = weights.dense("a", "b", biases=("c", "d"))(x)
    parts = (weights.dense("a")(x), weights.dense("b")(x))
    assert_bits_equal(joined, torch.cat(parts, dim=1) + biases)


def test_a_split_adds_its_leaves_in_the_canonical_tree() -> None:
    weights = weights_of(torch.float32)
    x = random(3, 8, seed=2)
    leaves = x.unflatten(1, (4, 2)).transpose(0, 1) @ weights.tensors["a"].view(6, 4, 2).permute(
        1, 2, 0
    )
    torch.testing.assert_close(weights.split("a", 4)(x), tree_sum(leaves))


def test_rows_are_wide_only_where_nothing_promises_their_rounding() -> None:
    for exact in (True, False):
        setup = weights_of(torch.bfloat16, exact=exact).setup
        for products in Products:
            chosen = replace(setup, chosen_products=products)
            is_wide = not exact and products is not Products.NATIVE
            assert chosen.row_dtype is (torch.float32 if is_wide else torch.bfloat16)
