"""Dense Qwen3."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headrace.models.common.decoder import Decoder, Mlp, load_decoder
from headrace.models.common.dense_mlp import load_dense_mlp
from headrace.models.setup import ModelSetup, Weights


def load_qwen3(tensors: Mapping[str, Tensor], setup: ModelSetup) -> Decoder:
    """Build a dense Qwen3 from one rank's tensors; see ``load_model``."""
    return load_decoder(Weights(tensors, setup), _load_mlp)


def _load_mlp(weights: Weights, layer: int) -> Mlp:
    return load_dense_mlp(weights, f"model.layers.{layer}.mlp.")
