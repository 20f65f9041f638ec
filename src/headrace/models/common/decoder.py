"""The decoder stack that the Qwen3 models share: embedding, layers, head.

Shape letters: T = tokens of the batch   L = rows that yield logits   H = hidden width
    V = vocabulary   D = head dimension
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from headrace.core.layouts import KvSchema
from headrace.kernels.attention import AttentionShape, write_kv
from headrace.kernels.linear import Dense
from headrace.kernels.norm import add_rms_norm, rms_norm
from headrace.kernels.rope import RopeTable, YarnScaling, rope_table
from headrace.models.common.attention import Attention, load_attention
from headrace.models.forward_batch import ForwardBatch
from headrace.models.setup import ModelSetup, Weights

# Normed rows, [T, H] -> fp32 [T, H], summed over all ranks.
Mlp = Callable[[Tensor], Tensor]

LoadMlp = Callable[[Weights, int], Mlp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer.

    Attributes:
        input_norm_H: RMSNorm weight before attention.
        attention: The layer's attention.
        post_norm_H: RMSNorm weight before the MLP.
        mlp: Dense MLP or experts.
    """

    input_norm_H: Tensor
    attention: Attention
    post_norm_H: Tensor
    mlp: Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A loaded model of one rank. Holds no state of any sequence; any thread may run it.

    Attributes:
        setup: Sizes, shard and strategies.
        embedding_VH: Token embedding.
        layers: Decoder layers in order.
        norm_H: Final RMSNorm weight.
        head: Output head.
        rope: Rotation table.
    """

    setup: ModelSetup
    embedding_VH: Tensor
    layers: tuple[Layer, ...]
    norm_H: Tensor
    head: Dense
    rope: RopeTable

    @property
    def cache_schema(self) -> tuple[KvSchema, ...]:
        """KV of each layer, before any sharding."""
        return self.setup.config.cache_schema(str(self.setup.dtype).removeprefix("torch."))

    def attention_shape(self, block_size: int) -> AttentionShape:
        """Return what ``build_forward_batch`` needs to know of this rank's attention."""
        config, shard = self.setup.config, self.setup.shard
        return AttentionShape(
            num_kv_heads=len(shard.kv_heads),
            queries_per_kv=config.num_heads // config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            exact=self.setup.exact,
        )

    @torch.inference_mode()
    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[Tensor],
        on_layer: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Run one step: write the batch's KV into the caches and compute the logits asked for.

        A collective among the replica's ranks, with zero tokens too. When no row wants logits and
        the ranks share the batch, the last layer stops after its KV is written, on all ranks alike.

        Args:
            batch: The step. Not modified.
            caches: Per layer the rank's KV pool ``[2, heads, blocks, block_size, D]`` in the
                model dtype, contiguous; the batch's slots are written in place.
            on_layer: Called with the layer's index right after its KV of this batch is written,
                before its attention; from the calling thread.

        Returns:
            fp32 logits ``[L, V]``, not rounded to the model dtype; freshly allocated.
        """
        rope = self.rope.rows(batch.positions_T)
        x_TH = self.embed(batch.token_ids_T)
        needs_rows = batch.logit_rows_L.shape[0] > 0 or not self.setup.ranks_share_batch
        last = len(self.layers) - 1
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            q_TQD = self._write_layer(layer, x_TH, rope, batch=batch, cache=cache)
            if on_layer is not None:
                on_layer(index)
            if index == last and not needs_rows:
                break
            x_TH = self._finish_layer(layer, x_TH, q_TQD, batch=batch, cache=cache)
        return self.logits(x_TH[batch.logit_rows_L])

    def embed(self, token_ids_T: Tensor) -> Tensor:
        """Look up tokens: ``[T, H]`` in the rows' dtype."""
        return self.embedding_VH[token_ids_T].to(self.norm_H.dtype)

    @torch.inference_mode()
    def run_layer(self, index: int, x_TH: Tensor, *, batch: ForwardBatch, cache: Tensor) -> Tensor:
        """Run one layer on its own: what a layer-by-layer comparison needs.

        Args:
            index: Which layer.
            x_TH: Residual stream. Not modified.
            batch: The step.
            cache: The layer's KV pool; written.

        Returns:
            The residual stream after the layer.
        """
        layer = self.layers[index]
        rope = self.rope.rows(batch.positions_T)
        q_TQD = self._write_layer(layer, x_TH, rope, batch=batch, cache=cache)
        return self._finish_layer(layer, x_TH, q_TQD, batch=batch, cache=cache)

    @torch.inference_mode()
    def logits(self, x_LH: Tensor) -> Tensor:
        """Norm rows of the residual stream and apply the head: fp32 ``[L, V]``."""
        x_LH = self._norm(x_LH, self.norm_H)
        return self.head(x_LH, out_dtype=torch.float32)

    def _norm(self, x_TH: Tensor, weight_H: Tensor) -> Tensor:
        eps = self.setup.config.rms_norm_eps
        return rms_norm(x_TH, weight_H, eps=eps, exact=self.setup.exact)

    def _write_layer(
        self,
        layer: Layer,
        x_TH: Tensor,
        rope: tuple[Tensor, Tensor],
        *,
        batch: ForwardBatch,
        cache: Tensor,
    ) -> Tensor:
        normed_TH = self._norm(x_TH, layer.input_norm_H)
        q_TQD, k_TGD, v_TGD = layer.attention.project(normed_TH, rope)
        write_kv(cache, k_TGD, v_TGD, batch.slots_T)
        return q_TQD

    def _finish_layer(
        self, layer: Layer, x_TH: Tensor, q_TQD: Tensor, *, batch: ForwardBatch, cache: Tensor
    ) -> Tensor:
        attended_TH = layer.attention.attend(q_TQD, cache, batch.attention)
        eps, exact = self.setup.config.rms_norm_eps, self.setup.exact
        normed_TH, x_TH = add_rms_norm(attended_TH, x_TH, layer.post_norm_H, eps=eps, exact=exact)
        return layer.mlp(normed_TH).to(x_TH.dtype) + x_TH


def load_decoder(weights: Weights, load_mlp: LoadMlp) -> Decoder:
    """Build a decoder from one rank's weights.

    Args:
        weights: This rank's parameters; may be dropped by the caller afterwards.
        load_mlp: Takes the MLP of a layer out of the weights.

    Raises:
        KeyError: A parameter is missing (the loader has checked that none is).
    """
    setup = weights.setup
    is_tied = setup.config.tie_word_embeddings
    embedding = "model.embed_tokens.weight"
    return Decoder(
        setup=setup,
        embedding_VH=weights.stored(embedding),
        layers=tuple(
            _load_layer(weights, index, load_mlp) for index in range(setup.config.num_layers)
        ),
        norm_H=weights.row("model.norm.weight"),
        head=weights.dense(embedding if is_tied else "lm_head.weight"),
        rope=_load_rope(setup),
    )


def _load_layer(weights: Weights, index: int, load_mlp: LoadMlp) -> Layer:
    prefix = f"model.layers.{index}."
    return Layer(
        input_norm_H=weights.row(prefix + "input_layernorm.weight"),
        attention=load_attention(weights, prefix + "self_attn."),
        post_norm_H=weights.row(prefix + "post_attention_layernorm.weight"),
        mlp=load_mlp(weights, index),
    )


def _load_rope(setup: ModelSetup) -> RopeTable:
    config = setup.config
    yarn = YarnScaling(**msgspec.structs.asdict(config.yarn)) if config.yarn else None
    return rope_table(
        config.head_dim,
        setup.num_positions or config.max_positions,
        theta=config.rope_theta,
        yarn=yarn,
        dtype=setup.row_dtype,
    )
