import pytest
import torch

from headrace.core.sharding import Role, Sharding
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
    return Weights({"a": random(6, 8), "b": random(2, 8, seed=1)}, setup)


@pytest.mark.parametrize("exact", [True, False])
def test_weights_are_rounded_to_the_model_dtype_before_anything(exact: bool) -> None:
    weights = weights_of(torch.bfloat16, exact=exact)
    rounded = weights.tensors["a"].to(torch.bfloat16)
    assert_bits_equal(weights.stored("a"), rounded)
    assert_bits_equal(weights.compute("a"), rounded.float() if exact else rounded)


def test_what_needs_no_change_is_not_copied() -> None:
    weights = weights_of(torch.float32)
    assert weights.compute("a") is weights.tensors["a"]


def test_joined_weights_are_stacked_rows() -> None:
    weights = weights_of(torch.float32)
    joined = weights.joined("a", "b")
    assert_bits_equal(joined, torch.cat((weights.tensors["a"], weights.tensors["b"])))


def test_leaves_are_runs_of_columns_transposed() -> None:
    weights = weights_of(torch.float32)
    leaves = weights.leaves("a", 4)
    assert leaves.is_contiguous()
    for index, leaf in enumerate(leaves):
        assert_bits_equal(leaf, weights.tensors["a"][:, 2 * index : 2 * index + 2].t())
