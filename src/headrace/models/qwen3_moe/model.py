"""Qwen3-MoE: routed experts in most layers, dense MLPs where the config says so.

Shape letters: T = tokens   R = rows at a rank that owns experts   H = hidden width
    E = experts of the model   K = experts per token   S = subtrees of this rank
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.gate import gate_topk
from headrace.kernels.linear import Dense
from headrace.kernels.moe import Experts, Placement, bind_experts, local_id_table
from headrace.models.common.decoder import Decoder, Mlp, load_decoder
from headrace.models.common.dense_mlp import load_dense_mlp
from headrace.models.parallel import ExpertExchange, LocalExchange
from headrace.models.setup import ModelSetup, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp:
    """One layer's gate and this rank's experts.

    Attributes:
        gate: Gate over all experts of the model.
        experts: This rank's experts: any rows to their subtrees, fp32 ``[R, S, H]``.
        top_k: K.
        norm_topk_prob: Renormalise the chosen scores.
        exact: Ties of the gate as exact mode has them.
        dtype: In which rows travel to experts.
        exchange: Joins the ranks that split experts.
    """

    gate: Dense
    experts: Experts
    top_k: int
    norm_topk_prob: bool
    exact: bool
    dtype: torch.dtype
    exchange: ExpertExchange

    def __call__(self, x_TH: Tensor) -> Tensor:
        """Compute fp32 ``[T, H]``, summed over all ranks. A collective when experts are split."""
        logits_TE = self.gate(x_TH)
        weights_TK, ids_TK = gate_topk(
            logits_TE, top_k=self.top_k, renormalize=self.norm_topk_prob, exact=self.exact
        )
        return self.exchange.run(x_TH.to(self.dtype), ids_TK, weights_TK.float(), self.experts)


def load_qwen3_moe(tensors: Mapping[str, Tensor], setup: ModelSetup) -> Decoder:
    """Build a Qwen3-MoE from one rank's tensors; see ``load_model``."""
    return load_decoder(Weights(tensors, setup), _load_mlp)


def _load_mlp(weights: Weights, layer: int) -> Mlp:
    prefix = f"model.layers.{layer}.mlp."
    if not weights.setup.config.is_moe_layer(layer):
        return load_dense_mlp(weights, prefix)
    return _load_moe(weights, prefix)


def _load_moe(weights: Weights, prefix: str) -> MoeMlp:
    setup = weights.setup
    config = setup.config
    return MoeMlp(
        gate=weights.dense(prefix + "gate.weight"),
        experts=bind_experts(
            weights.stored(prefix + "experts.gate_up_proj"),
            weights.stored(prefix + "experts.down_proj"),
            _place(setup),
            products=setup.products,
            exact=setup.exact,
        ),
        top_k=config.top_k,
        norm_topk_prob=config.norm_topk_prob,
        exact=setup.exact,
        # Ranks may have chosen different products, but must send each other the same.
        dtype=setup.row_dtype if isinstance(setup.exchange, LocalExchange) else setup.dtype,
        exchange=setup.exchange,
    )


def _place(setup: ModelSetup) -> Placement:
    shard, num_experts = setup.shard, setup.config.num_experts
    num_held = len(shard.experts)
    num_groups = shard.num_expert_groups * num_held // num_experts
    return Placement(
        local_ids=local_id_table(shard.experts, num_experts),
        group_E=torch.arange(num_held) * num_groups // num_held,
        num_groups=num_groups,
        num_parts=len(shard.width_parts),
        is_whole=shard.owns_whole_width,
    )
