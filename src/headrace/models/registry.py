"""From a config's architecture to the model that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from headrace.core.layouts import KvSchema
from headrace.kernels.attention import AttentionShape
from headrace.models.forward_batch import ForwardBatch
from headrace.models.qwen3.model import load_qwen3
from headrace.models.qwen3_moe.model import load_qwen3_moe
from headrace.models.setup import ModelSetup


class Model(Protocol):
    """What the engine runs: see ``models.common.decoder.Decoder`` for the full contract."""

    @property
    def cache_schema(self) -> tuple[KvSchema, ...]:
        """KV of each layer, before any sharding."""
        ...

    def attention_shape(self, block_size: int) -> AttentionShape:
        """Return what ``build_forward_batch`` needs to know of this rank's attention."""
        ...

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[Tensor],
        on_layer: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Write the batch's KV into the caches and return fp32 logits ``[L, V]``."""
        ...


def load_model(tensors: Mapping[str, Tensor], setup: ModelSetup) -> Model:
    """Build the model of one rank.

    Args:
        tensors: This rank's part of every parameter of ``weight_slices``, by canonical name. The
            model keeps what it can use as it is and copies the rest (exact mode multiplies with
            fp32 copies of bf16 weights); the caller may drop the mapping afterwards.
        setup: Config, shard, dtype and strategies.

    Raises:
        KeyError: A parameter is missing (the checkpoint loader has checked that none is).
    """
    loaders = {"qwen3": load_qwen3, "qwen3_moe": load_qwen3_moe}
    return loaders[setup.config.architecture](tensors, setup)
