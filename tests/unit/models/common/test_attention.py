import pytest
import torch

from headrace.core.sharding import Role, Sharding
from headrace.models.common.attention import load_attention
from headrace.models.forward_batch import SequenceChunk, build_forward_batch
from headrace.models.setup import ModelSetup, Weights
from headrace.models.shard import shard_of
from tests.support.kernels_checks import DTYPES, assert_bits_equal, random
from tests.support.models_builders import Cache, random_weights, rank_weights, tiny_config
from tests.support.models_ranks import mono_model

PREFIX = "model.layers.0.self_attn."
ROPE = (torch.ones(1, 1, 16), torch.zeros(1, 1, 16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_shards_heads_are_the_whole_models_heads(dtype: torch.dtype, has_bias: bool) -> None:
    config = tiny_config(attention_bias=has_bias)
    weights = random_weights(config)
    rope = tuple(part.to(dtype) for part in ROPE)

    def project(sharding: Sharding, rank: int) -> tuple[torch.Tensor, ...]:
        shard = shard_of(config, sharding, Role.PREFILL, rank=rank)
        setup = ModelSetup(config=config, shard=shard, dtype=dtype)
        part = rank_weights(weights, config, sharding, Role.PREFILL, rank=rank)
        return load_attention(Weights(part, setup), PREFIX).project(x, rope)

    x = random(7, 48, dtype=dtype)
    parts = [project(Sharding(tp=4, ep=4), rank) for rank in range(4)]
    for whole, shards in zip(project(Sharding(), 0), zip(*parts, strict=True), strict=True):
        assert whole.dtype == dtype
        assert_bits_equal(torch.cat(shards, dim=1), whole)


def test_the_output_bias_is_added_once() -> None:
    config = tiny_config(attention_bias=True)
    weights = random_weights(config)
    shard = shard_of(config, Sharding(), Role.PREFILL, rank=0)
    sums: list[torch.Tensor] = []

    def reduce(partial: torch.Tensor) -> torch.Tensor:
        sums.append(partial)
        return 2 * partial

    setup = ModelSetup(config=config, shard=shard, dtype=torch.float32, reduce=reduce)
    attention = load_attention(Weights(weights, setup), PREFIX)
    cache = Cache(mono_model(config, weights), num_blocks=1, block_size=16)
    for pool in cache.pools:
        pool.fill_(1.0)
    chunk = SequenceChunk(token_ids=[1, 2], start=3, block_ids=[0])
    plan = build_forward_batch([chunk], cache.shape).attention
    out = attention.attend(random(2, 8, 16), cache.pools[0], plan)
    assert_bits_equal(out, 2 * sums[0] + weights[PREFIX + "o_proj.bias"])
