"""Arranging weights stacks what is multiplied together and keeps the rest as it is."""

import msgspec
import pytest
import torch

from headrace.core.errors import CheckpointError
from headrace.models.device.random import random_tensors
from headrace.models.device.weights import arrange_weights
from tests.support.checkpoints import TinyModel, model_config


def test_projections_are_stacked_and_experts_shared() -> None:
    config = model_config(TinyModel())
    tensors = random_tensors(config, dtype=torch.float32, device="cpu")
    weights = arrange_weights(tensors, config, num_positions=32)
    prefix = "model.layers.0.self_attn."
    stacked = torch.cat([tensors[f"{prefix}{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights.layers[0].qkv_NH, stacked)
    down = tensors["model.layers.0.mlp.experts.down_proj"]
    assert weights.layers[0].down.data_ptr() == down.data_ptr()
    assert weights.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert len(weights.rope.cos_PF) == 32


def test_a_tied_head_is_the_embedding_and_counts_once() -> None:
    config = msgspec.structs.replace(model_config(TinyModel()), tie_word_embeddings=True)
    tensors = random_tensors(config, dtype=torch.float32, device="cpu")
    weights = arrange_weights(tensors, config, num_positions=8)
    assert weights.head_VH is weights.embedding_VH
    assert weights.num_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_biases_are_refused_with_what_to_do() -> None:
    config = msgspec.structs.replace(model_config(TinyModel()), attention_bias=True)
    with pytest.raises(CheckpointError, match="device=cpu"):
        arrange_weights({}, config, num_positions=8)


def test_a_dense_layer_has_no_gate_and_its_two_projections_stacked() -> None:
    config = model_config(TinyModel(num_layers=2, dense_layers=(1,)))
    tensors = random_tensors(config, dtype=torch.float32, device="cpu")
    experts, dense = arrange_weights(tensors, config, num_positions=8).layers
    assert experts.gate_EH is tensors["model.layers.0.mlp.gate.weight"]
    assert dense.gate_EH is None
    prefix = "model.layers.1.mlp."
    stacked = torch.cat([tensors[f"{prefix}{name}_proj.weight"] for name in ("gate", "up")])
    assert torch.equal(dense.gate_up, stacked)
    assert dense.down is tensors[f"{prefix}down_proj.weight"]
