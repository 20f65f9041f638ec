from typing import Any

import pytest

from headrace.core.errors import CheckpointError
from headrace.models.config import parse_config
from tests.support.models_builders import DENSE_JSON, MOE_JSON, tiny_config

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


@pytest.mark.parametrize(
    "data",
    [
        MOE_JSON,
        without(MOE_JSON, "num_experts") | {"num_local_experts": 16},
        without(MOE_JSON, "rope_theta")
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        without(MOE_JSON, "torch_dtype") | {"dtype": "float32"},
        MOE_JSON | {"torch_dtype": "torch.float32"},
        without(MOE_JSON, "architectures"),
        MOE_JSON | {"rope_scaling": None, "sliding_window": 4096, "use_sliding_window": False},
        MOE_JSON | {"layer_types": ["full_attention"] * 3, "max_window_layers": 3},
        MOE_JSON | {"mlp_only_layers": None, "eos_token_id": [1]},
    ],
)
def test_every_spelling_is_the_same_config(data: dict[str, Any]) -> None:
    assert parse_config(data) == tiny_config()


def test_a_dense_model_has_no_experts() -> None:
    config = parse_config(DENSE_JSON)
    assert (config.architecture, config.num_experts, config.top_k) == ("qwen3", 0, 0)
    assert not any(config.is_moe_layer(layer) for layer in range(3))


@pytest.mark.parametrize(
    ("changes", "dense"),
    [({}, ()), ({"mlp_only_layers": [2]}, (2,)), ({"decoder_sparse_step": 2}, (0, 2))],
)
def test_dense_layers_follow_step_and_list(changes: dict[str, Any], dense: tuple[int, ...]) -> None:
    config = tiny_config(**changes)
    assert config.dense_layers == dense
    assert [config.is_moe_layer(layer) for layer in range(3)] == [i not in dense for i in range(3)]


def test_defaults_fill_what_old_files_left_out() -> None:
    config = parse_config(without(MOE_JSON, "head_dim", "num_key_value_heads", "torch_dtype"))
    assert (config.head_dim, config.num_kv_heads, config.dtype) == (6, 8, "float32")
    assert parse_config(without(DENSE_JSON, "head_dim")).head_dim == 128


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_yarn_is_read_from_either_place(key: str, type_key: str) -> None:
    scaling = without(YARN, "rope_type") | {type_key: "yarn", "attention_factor": 1.25}
    config = tiny_config(**{key: scaling})
    assert config.yarn is not None
    assert (config.yarn.factor, config.yarn.original_max_positions) == (4.0, 128)
    assert (config.yarn.attention_factor, config.yarn.beta_fast) == (1.25, 32.0)
    assert config.rope_theta == 10000.0
    assert config.max_positions == 512


def test_yarn_extends_the_longest_context() -> None:
    assert tiny_config(max_position_embeddings=300).max_positions == 300
    assert tiny_config(max_position_embeddings=300, rope_scaling=YARN).max_positions == 512


def test_several_tokens_may_end_a_sequence() -> None:
    assert tiny_config(eos_token_id=[3, 5]).eos_token_ids == (3, 5)
    assert tiny_config(eos_token_id=None).eos_token_ids == ()


def test_cache_schema_has_an_entry_a_layer() -> None:
    schema = tiny_config().cache_schema("bfloat16")
    assert len(schema) == 3
    assert (schema[0].num_kv_heads, schema[0].head_dim, schema[0].dtype) == (4, 16, "bfloat16")
    assert tiny_config().cache_schema()[0].dtype == "float32"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ("LlamaForCausalLM", "Qwen3MoeForCausalLM")),
        # Layers of recurrent state: no transfer plan, no cache layout knows them.
        ({"architectures": ["Qwen3NextForCausalLM"]}, ("Qwen3NextForCausalLM", "supported are")),
        ({"layer_types": ["full_attention", "linear_attention"]}, ("full_attention",)),
        ({"architectures": None, "model_type": "gpt2"}, ("gpt2", "Qwen3ForCausalLM")),
        ({"text_config": {}}, ("text_config", "text-only")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("fp8", "not here yet")),
        ({"quantization_config": {"bits": 4}}, ("unnamed scheme", "not here yet")),
        ({"use_sliding_window": True}, ("sliding window", "full_attention")),
        ({"layer_types": ["linear_attention"] * 3}, ("full_attention",)),
        ({"hidden_act": "gelu"}, ("gelu", "silu")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("llama3", "yarn")),
        ({"rope_scaling": "yarn"}, ("rope parameters", "object")),
        ({"partial_rotary_factor": 0.25}, ("partial_rotary_factor=0.25",)),
        ({"torch_dtype": "float8_e4m3fn"}, ("float8_e4m3fn", "bfloat16")),
        ({"num_attention_heads": 6}, ("num_key_value_heads=4", "num_attention_heads=6")),
        ({"head_dim": 15}, ("head_dim=15", "even")),
        ({"num_experts_per_tok": 17}, ("num_experts_per_tok=17", "num_experts=16")),
        ({"eos_token_id": 96}, ("eos_token_id=96", "96")),
        ({"eos_token_id": "</s>"}, ("</s>", "token id")),
        ({"hidden_size": None}, ("hidden_size", "missing")),
        ({"num_experts": None}, ("num_experts or num_local_experts", "missing")),
        ({"vocab_size": "many"}, ("vocab_size='many'", "whole number")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers=0", "at least 1")),
        ({"num_hidden_layers": 10**12}, ("num_hidden_layers=1000000000000", "at most 1000")),
        ({"rms_norm_eps": -1}, ("rms_norm_eps=-1", "positive")),
        ({"norm_topk_prob": "yes"}, ("norm_topk_prob='yes'", "true or false")),
        ({"mlp_only_layers": 3}, ("mlp_only_layers=3", "layer indices")),
        ({"rope_theta": "1e6"}, ("rope_theta='1e6'",)),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_config(MOE_JSON | changes, where="model/config.json")
    message = str(caught.value)
    assert message.startswith("model/config.json")
    assert "\n" not in message
    for word in words:
        assert word in message
