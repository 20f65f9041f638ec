"""A model's weights in the form the device decoder computes with: whole, in the model's dtype.

Shape letters:
    V = vocabulary   H = hidden width   N = (query + 2 KV heads) * D   D = head dimension
    X = query heads * D   E = experts   I = expert width   J = 2I
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.kernels.rope import RopeTable, YarnScaling, rope_table
from headrace.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLayer:
    """One decoder layer.

    Attributes:
        input_norm_H: RMSNorm weight before attention.
        qkv_NH: Query, key and value projections, stacked.
        q_norm_D: QK-norm weight of query heads.
        k_norm_D: QK-norm weight of key heads.
        out_HX: Output projection.
        post_norm_H: RMSNorm weight before the MLP.
        gate_EH: Gate of the experts; None in a dense layer.
        gate_up: ``[E, J, H]``, gate rows first; ``[J, H]`` in a dense layer.
        down: ``[E, H, I]``; ``[H, I]`` in a dense layer.
    """

    input_norm_H: Tensor
    qkv_NH: Tensor
    q_norm_D: Tensor
    k_norm_D: Tensor
    out_HX: Tensor
    post_norm_H: Tensor
    gate_EH: Tensor | None
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWeights:
    """All parameters of a model on one device.

    Attributes:
        embedding_VH: Token embedding.
        layers: Decoder layers in order.
        norm_H: Final RMSNorm weight.
        head_VH: Output head; the embedding itself when tied.
        rope: Rotation table in the model's dtype.
    """

    embedding_VH: Tensor
    layers: tuple[DeviceLayer, ...]
    norm_H: Tensor
    head_VH: Tensor
    rope: RopeTable

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters, a tied head once."""
        tensors = [self.embedding_VH, self.norm_H]
        for layer in self.layers:
            fields = (getattr(layer, name) for name in DeviceLayer.__dataclass_fields__)
            tensors += [field for field in fields if field is not None]
        is_tied = self.head_VH.data_ptr() == self.embedding_VH.data_ptr()
        return sum(t.nbytes for t in tensors) + (0 if is_tied else self.head_VH.nbytes)


def arrange_weights(
    tensors: Mapping[str, Tensor], config: ModelConfig, *, num_positions: int
) -> DeviceWeights:
    """Arrange canonical parameters that are already on the device.

    Args:
        tensors: Canonical name -> whole parameter, in the model's dtype. Kept by reference,
            except for the projections that are stacked.
        config: The model.
        num_positions: Positions to tabulate.

    Raises:
        CheckpointError: The model has attention biases, which this decoder does not compute.
    """
    if config.attention_bias:
        raise CheckpointError(
            "attention_bias=true: the device engine computes projections without biases; run this "
            "model with device=cpu"
        )
    embedding_VH = tensors["model.embed_tokens.weight"]
    yarn = YarnScaling(**msgspec.structs.asdict(config.yarn)) if config.yarn else None
    table = rope_table(
        config.head_dim,
        num_positions,
        theta=config.rope_theta,
        yarn=yarn,
        dtype=embedding_VH.dtype,
    )
    device = embedding_VH.device
    return DeviceWeights(
        embedding_VH=embedding_VH,
        layers=tuple(_layer(tensors, config, index) for index in range(config.num_layers)),
        norm_H=tensors["model.norm.weight"],
        head_VH=embedding_VH if config.tie_word_embeddings else tensors["lm_head.weight"],
        rope=RopeTable(table.cos_PF.to(device), table.sin_PF.to(device)),
    )


def _layer(tensors: Mapping[str, Tensor], config: ModelConfig, index: int) -> DeviceLayer:
    prefix = f"model.layers.{index}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    if config.is_moe_layer(index):
        gate_EH = tensors[mlp + "gate.weight"]
        gate_up = tensors[mlp + "experts.gate_up_proj"]
        down = tensors[mlp + "experts.down_proj"]
    else:
        gate_EH = None
        gate_up = torch.cat([tensors[f"{mlp}{name}_proj.weight"] for name in ("gate", "up")])
        down = tensors[mlp + "down_proj.weight"]
    return DeviceLayer(
        input_norm_H=tensors[prefix + "input_layernorm.weight"],
        qkv_NH=torch.cat([tensors[f"{attention}{name}_proj.weight"] for name in "qkv"]),
        q_norm_D=tensors[attention + "q_norm.weight"],
        k_norm_D=tensors[attention + "k_norm.weight"],
        out_HX=tensors[attention + "o_proj.weight"],
        post_norm_H=tensors[prefix + "post_attention_layernorm.weight"],
        gate_EH=gate_EH,
        gate_up=gate_up,
        down=down,
    )
