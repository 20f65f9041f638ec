"""Floors count what a step cannot do without."""

import pytest

from headrace.bench.device.floors import (
    decode_bytes,
    dense_weight_elements,
    expert_sizes,
    kv_bytes_per_token,
    num_moe_layers,
    prefill_flops,
)
from headrace.core.sharding import Role, Sharding
from headrace.models.config import ModelConfig
from headrace.models.slices import weight_slices
from tests.support.checkpoints import TinyModel, model_config


@pytest.fixture(params=[(), (1,)], ids=["experts", "a dense layer"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return model_config(TinyModel(num_layers=3, dense_layers=request.param))


def test_weights_are_those_of_the_model(config: ModelConfig) -> None:
    total = 0
    for spec in weight_slices(config, Sharding(), Role.MONO, rank=0):
        if len(spec.shape) > 1 and "experts" not in spec.name and "embed" not in spec.name:
            total += spec.shape[0] * spec.shape[1]
    assert dense_weight_elements(config) == total


def test_a_step_reads_experts_that_are_hit_and_every_tokens_kv(config: ModelConfig) -> None:
    one = decode_bytes(config, batch=1, context=10, experts_hit=2)
    assert decode_bytes(config, batch=3, context=10, experts_hit=2) - one == pytest.approx(
        20 * kv_bytes_per_token(config)
    )
    sizes = expert_sizes(config)
    more = decode_bytes(config, batch=1, context=10, experts_hit=3) - one
    assert more == num_moe_layers(config) * 6 * sizes.hidden * sizes.width


def test_two_prompts_cost_less_attention_than_one_of_both(config: ModelConfig) -> None:
    assert prefill_flops(config, [64, 64]) < prefill_flops(config, [128])
    assert prefill_flops(config, [64, 64]) == pytest.approx(2 * prefill_flops(config, [64]))
