"""Qwen3-MoE: routed experts in most layers, dense MLPs where the config says so.

Shape letters: T = tokens   R = rows at a rank that owns experts   H = hidden width
    E = experts of the model   K = experts per token   S = subtrees of this rank
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.gate import gate_topk
from headrace.kernels.linear import linear
from headrace.kernels.moe import ExpertWeights, expert_partials, pack_experts
from headrace.models.common.decoder import Decoder, Mlp, load_decoder
from headrace.models.common.dense_mlp import load_dense_mlp
from headrace.models.parallel import ExpertExchange
from headrace.models.setup import ModelSetup, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp:
    """One layer's gate and this rank's experts.

    Attributes:
        gate_EH: Gate weight over all experts of the model.
        experts: This rank's experts.
        top_k: K.
        norm_topk_prob: Renormalise the chosen scores.
        exact: Canonical products.
        exchange: Joins the ranks that split experts.
    """

    gate_EH: Tensor
    experts: ExpertWeights
    top_k: int
    norm_topk_prob: bool
    exact: bool
    exchange: ExpertExchange

    def __call__(self, x_TH: Tensor) -> Tensor:
        """Compute fp32 ``[T, H]``, summed over all ranks. A collective when experts are split."""
        logits_TE = linear(x_TH, self.gate_EH, exact=self.exact)
        weights_TK, ids_TK = gate_topk(logits_TE, top_k=self.top_k, renormalize=self.norm_topk_prob)
        return self.exchange.run(x_TH, ids_TK, weights_TK.float(), self.local_experts)

    def local_experts(self, x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor) -> Tensor:
        """Compute this rank's subtrees of any rows' sums over experts: fp32 ``[R, S, H]``."""
        return expert_partials(x_RH, ids_RK, weights_RK, self.experts)


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
    config, shard = setup.config, setup.shard
    experts = pack_experts(
        weights.compute(prefix + "experts.gate_up_proj"),
        weights.compute(prefix + "experts.down_proj"),
        experts=shard.experts,
        num_experts=config.num_experts,
        num_groups=shard.num_expert_groups * len(shard.experts) // config.num_experts,
        num_parts=len(shard.width_parts),
        is_whole=shard.owns_whole_width,
    )
    return MoeMlp(
        gate_EH=weights.compute(prefix + "gate.weight"),
        experts=experts,
        top_k=config.top_k,
        norm_topk_prob=config.norm_topk_prob,
        exact=setup.exact,
        exchange=setup.exchange,
    )
