"""Shapes say of a model what its own config would."""

from headrace.bench.device.shapes import MODELS, QWEN3_30B_A3B
from headrace.models.config import ModelConfig
from headrace.models.device.kernels import model_sizes


def test_a_shape_and_a_config_give_a_site_the_same_sizes():
    shape = QWEN3_30B_A3B
    config = ModelConfig(
        architecture="qwen3_moe",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        num_layers=48,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=6144,
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        moe_intermediate_size=shape.expert_width,
    )
    assert shape.site_sizes(block_size=32) == model_sizes(config, block_size=32)


def test_further_sizes_are_added():
    assert QWEN3_30B_A3B.site_sizes(num_tokens=7)["num_tokens"] == 7


def test_names_are_parts_of_case_names():
    assert all("/" not in model.name for model in MODELS)
