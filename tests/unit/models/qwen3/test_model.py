import pytest
import torch

from headrace.core.sharding import Sharding
from headrace.models.registry import Model
from tests.support.kernels_checks import DTYPES, assert_bits_equal
from tests.support.models_builders import (
    DENSE_JSON,
    random_prompts,
    random_weights,
    teacher_forced_logits,
    tiny_config,
)
from tests.support.models_ranks import mono_model, run_replica
from tests.support.models_transformers import reference_logits, reference_model

PROMPTS = random_prompts((45, 17, 133, 1), vocab_size=96)

VARIANTS = {
    "plain": {},
    "tied head": {"tie_word_embeddings": True},
    "attention bias": {"attention_bias": True},
    "odd width": {"intermediate_size": 100, "num_key_value_heads": 8},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 1.3,
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_the_reference_librarys(name: str) -> None:
    data = DENSE_JSON | VARIANTS[name]
    if "rope_parameters" in data:
        data.pop("rope_theta")
    data["max_position_embeddings"] = 256
    config = tiny_config(data)
    weights = random_weights(config)
    ours = teacher_forced_logits(mono_model(config, weights), PROMPTS, chunk=30)
    theirs = reference_logits(reference_model(data, weights), PROMPTS)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine - reference).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tp", [2, 4])
def test_logits_do_not_depend_on_the_sharding(dtype: torch.dtype, tp: int) -> None:
    config = tiny_config(DENSE_JSON)
    weights = random_weights(config)
    mono = teacher_forced_logits(mono_model(config, weights, dtype=dtype), PROMPTS, chunk=50)

    def work(model: Model, rank: int) -> list[torch.Tensor]:
        return teacher_forced_logits(model, PROMPTS, chunk=50, block_size=32)

    for logits in run_replica(config, weights, work, sharding=Sharding(tp=tp), dtype=dtype):
        for ours, expected in zip(logits, mono, strict=True):
            assert_bits_equal(ours, expected)
