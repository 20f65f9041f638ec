"""The decoder stack on a device: two ways through the same layers, for decode and for prefill.

A decode step has a fixed number of rows and no host value in it, so that a CUDA graph can hold it;
a prefill step takes chunks of any length. Both write their KV into the paged pool and both end in
normed rows, of which the head takes those that yield logits.

Shape letters:
    T = rows of the step   B = rows of a decode step, one a sequence   C = chunks of a prefill step
    L = rows that yield logits   H = hidden width   V = vocabulary   D = head dimension
    N = blocks of the pool   G = KV heads   S = token slots of a block   P = block-table width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.core.layouts import KvSchema
from headrace.kernels.swiglu import swiglu
from headrace.models.config import ModelConfig
from headrace.models.device.kernels import DeviceKernels
from headrace.models.device.weights import DeviceLayer, DeviceWeights

# Keyword arguments of the kernels that write or read an 8-bit pool; none for any other.
Scales = Mapping[str, Tensor]
# Rotated queries, the layer's pool and its scales to attended heads, [T, heads, D].
Attend = Callable[[Tensor, Tensor, Scales], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What every row of a step needs, whatever the step.

    Attributes:
        token_ids_T: int64 tokens; any valid one in padding rows.
        positions_T: int32 position of each token; 0 in padding rows.
        slots_T: int32 ``block * S + offset`` where the token's KV goes; -1 in padding rows.
        num_rows_1: int32 number of rows before the padding; None when there is none.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    num_rows_1: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDecoder:
    """A loaded model on one device. Holds no state of any sequence.

    Attributes:
        config: The model.
        weights: Its parameters.
        kv_dtype: Of the KV pools; empty for the weights' own.
        kv_scales: Of 8-bit pools, per layer what keys and values of each head are divided by when
            they are written, ``k_scale_G`` and ``v_scale_G`` in fp32; none for ones.
    """

    config: ModelConfig
    weights: DeviceWeights
    kv_dtype: str = ""
    kv_scales: tuple[tuple[Tensor, Tensor], ...] = ()

    @property
    def cache_schema(self) -> tuple[KvSchema, ...]:
        """KV of each layer."""
        own = str(self.weights.norm_H.dtype).removeprefix("torch.")
        return self.config.cache_schema(self.kv_dtype or own)

    def decode(
        self,
        rows: Rows,
        pools: Sequence[Tensor],
        kernels: DeviceKernels,
        *,
        block_table_BP: Tensor,
        seq_lens_B: Tensor,
        scratch: object = None,
    ) -> Tensor:
        """Run one decode step: each row's token attends to all of its sequence.

        Args:
            rows: One row a sequence.
            pools: Per layer ``[2, G, N, S, D]``; the rows' slots are written in place.
            kernels: Bound for this number of rows.
            block_table_BP: int32 block ids of each row.
            seq_lens_B: int32 tokens of each sequence, the row's own included; 0 is padding.
            scratch: Of the attention kernel, for use under a CUDA graph.

        Returns:
            fp32 logits ``[B, V]``, those of padding rows without meaning.

        Cost:
            No host sync and nothing that depends on values: safe to capture.
        """

        def attend(q_THD: Tensor, pool: Tensor, scales: Scales) -> Tensor:
            return kernels.decode_attention(
                q_THD,
                pool,
                block_table_BP,
                seq_lens_B,
                scale=self.config.head_dim**-0.5,
                scratch=scratch,
                **scales,
            )

        return self._logits(self._run_layers(rows, pools, kernels, attend))

    def prefill(
        self,
        rows: Rows,
        pools: Sequence[Tensor],
        kernels: DeviceKernels,
        *,
        block_table_CP: Tensor,
        query_starts_C1: Tensor,
        seq_lens_C: Tensor,
        max_query_len: int,
        logit_rows_L: Tensor | None = None,
        on_layer: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Run chunks of several sequences laid side by side.

        Args:
            rows: The chunks' tokens, sequence after sequence.
            pools: As in ``decode``.
            kernels: Bound for this number of rows.
            block_table_CP: int32 block ids of each sequence.
            query_starts_C1: int32 first row of each chunk, and the number of rows.
            seq_lens_C: int32 tokens of each sequence, its chunk included.
            max_query_len: Longest chunk [tokens].
            logit_rows_L: int64 rows that yield logits; None for none.
            on_layer: Called with each layer's index once its KV is enqueued.

        Returns:
            fp32 logits ``[L, V]``. With L = 0 the last layer stops after its KV.
        """

        def attend(q_THD: Tensor, pool: Tensor, scales: Scales) -> Tensor:
            return kernels.prefill_attention(
                q_THD,
                pool,
                block_table_CP,
                query_starts_C1,
                seq_lens_C,
                scale=self.config.head_dim**-0.5,
                max_query_len=max_query_len,
                **scales,
            )

        wants_rows = logit_rows_L is not None and len(logit_rows_L) > 0
        normed_TH = self._run_layers(
            rows, pools, kernels, attend, on_layer=on_layer, wants_rows=wants_rows
        )
        if not wants_rows:
            return self.weights.head_VH.new_zeros((0, len(self.weights.head_VH))).float()
        return self._logits(normed_TH[logit_rows_L])

    def _run_layers(
        self,
        rows: Rows,
        pools: Sequence[Tensor],
        kernels: DeviceKernels,
        attend: Attend,
        *,
        on_layer: Callable[[int], None] | None = None,
        wants_rows: bool = True,
    ) -> Tensor:
        """Return the final norm of every row, ``[T, H]``."""
        weights, eps = self.weights, self.config.rms_norm_eps
        residual_TH = F.embedding(rows.token_ids_T, weights.embedding_VH)
        normed_TH = kernels.rms_norm(residual_TH, weights.layers[0].input_norm_H, eps=eps)
        last = len(weights.layers) - 1
        for index, (layer, pool) in enumerate(zip(weights.layers, pools, strict=True)):
            scales = self._scales(index)
            q_THD = self._project(layer, normed_TH, rows, pool, kernels, scales=scales)
            if on_layer is not None:
                on_layer(index)
            if index == last and not wants_rows:
                break
            out_TH = kernels.out_linear(attend(q_THD, pool, scales).flatten(1), layer.out_HX)
            normed_TH, residual_TH = kernels.add_rms_norm(
                out_TH, residual_TH, layer.post_norm_H, eps=eps
            )
            following = weights.norm_H if index == last else weights.layers[index + 1].input_norm_H
            normed_TH, residual_TH = self._mlp(
                layer, (normed_TH, residual_TH, following), rows, kernels
            )
        return normed_TH

    def _project(
        self,
        layer: DeviceLayer,
        normed_TH: Tensor,
        rows: Rows,
        pool: Tensor,
        kernels: DeviceKernels,
        *,
        scales: Scales,
    ) -> Tensor:
        return kernels.norm_rope_write(
            kernels.qkv_linear(normed_TH, layer.qkv_NH),
            layer.q_norm_D,
            layer.k_norm_D,
            self.weights.rope,
            rows.positions_T,
            rows.slots_T,
            pool,
            num_q_heads=self.config.num_heads,
            eps=self.config.rms_norm_eps,
            **scales,
        )

    def _scales(self, layer: int) -> Scales:
        if not self.kv_scales:
            return {}
        k_scale_G, v_scale_G = self.kv_scales[layer]
        return {"k_scale_G": k_scale_G, "v_scale_G": v_scale_G}

    def _mlp(
        self,
        layer: DeviceLayer,
        stream: tuple[Tensor, Tensor, Tensor],
        rows: Rows,
        kernels: DeviceKernels,
    ) -> tuple[Tensor, Tensor]:
        """Add the MLP to the stream; return it normed by the weight that follows, and itself."""
        normed_TH, residual_TH, following_H = stream
        eps = self.config.rms_norm_eps
        if layer.gate_EH is None:
            out_TH = F.linear(swiglu(F.linear(normed_TH, layer.gate_up)), layer.down)
            return kernels.add_rms_norm(out_TH, residual_TH, following_H, eps=eps)
        routing = kernels.route(
            kernels.gate_linear(normed_TH, layer.gate_EH),
            top_k=self.config.top_k,
            renormalize=self.config.norm_topk_prob,
            num_rows_1=rows.num_rows_1,
        )
        out_PH = kernels.grouped_experts(normed_TH, routing, layer.gate_up, layer.down)
        return kernels.combine(out_PH, routing, residual_TH, following_H, eps=eps)

    def _logits(self, normed_LH: Tensor) -> Tensor:
        head_VH = self.weights.head_VH
        if normed_LH.is_cuda and normed_LH.dtype is not torch.float32:
            return torch.mm(normed_LH, head_VH.t(), out_dtype=torch.float32)
        return F.linear(normed_LH.float(), head_VH.float())
