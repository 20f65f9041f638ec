import pytest
import torch
import torch.nn.functional as F

from headrace.core.sharding import Role, Sharding
from headrace.kernels.tree import tree_sum
from headrace.models.common.dense_mlp import load_dense_mlp
from headrace.models.setup import ModelSetup, Weights
from headrace.models.shard import shard_of
from tests.support.kernels_checks import DTYPES, assert_bits_equal, random
from tests.support.models_builders import (
    DENSE_JSON,
    random_weights,
    rank_weights,
    tiny_config,
)

CONFIG = tiny_config(DENSE_JSON)
PREFIX = "model.layers.0.mlp."


def run(x: torch.Tensor, sharding: Sharding, rank: int) -> torch.Tensor:
    part = rank_weights(random_weights(CONFIG), CONFIG, sharding, Role.PREFILL, rank=rank)
    shard = shard_of(CONFIG, sharding, Role.PREFILL, rank=rank)
    setup = ModelSetup(config=CONFIG, shard=shard, dtype=x.dtype)
    return load_dense_mlp(Weights(part, setup), PREFIX)(x)


def test_it_is_swiglu_between_projections() -> None:
    x, weights = random(9, 48), random_weights(CONFIG)
    gate, up, down = (weights[f"{PREFIX}{name}_proj.weight"] for name in ("gate", "up", "down"))
    expected = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    torch.testing.assert_close(run(x, Sharding(), 0), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tp", [2, 4])
def test_shards_are_subtrees_of_the_whole(dtype: torch.dtype, tp: int) -> None:
    x = random(9, 48, dtype=dtype)
    roots = [run(x, Sharding(tp=tp), rank) for rank in range(tp)]
    assert_bits_equal(tree_sum(torch.stack(roots)), run(x, Sharding(), 0))
