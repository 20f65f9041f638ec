import pytest
import torch

from headrace.models.common.dense_mlp import DenseMlp
from headrace.models.qwen3_moe.model import MoeMlp
from tests.support.models_builders import DENSE_JSON, MOE_JSON, random_weights, tiny_config
from tests.support.models_ranks import mono_model


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        (MOE_JSON, [MoeMlp, MoeMlp, MoeMlp]),
        (MOE_JSON | {"mlp_only_layers": [1]}, [MoeMlp, DenseMlp, MoeMlp]),
        (DENSE_JSON, [DenseMlp] * 3),
    ],
)
def test_the_architecture_decides_the_layers(data: dict[str, object], kinds: list[type]) -> None:
    config = tiny_config(data)
    model = mono_model(config, random_weights(config), dtype=torch.bfloat16)
    assert [type(layer.mlp) for layer in model.layers] == kinds
    assert model.cache_schema == config.cache_schema("bfloat16")


def test_a_missing_parameter_is_an_error() -> None:
    config = tiny_config()
    weights = random_weights(config)
    del weights["model.layers.1.self_attn.k_norm.weight"]
    with pytest.raises(KeyError, match="k_norm"):
        mono_model(config, weights)
