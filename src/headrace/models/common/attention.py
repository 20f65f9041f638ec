"""Grouped-query attention with QK-norm and RoPE over a paged cache: one rank's heads.

Shape letters: T = tokens   H = hidden width   D = head dimension
    Q = query heads held   G = KV heads held (leaves of the output's canonical sum)   A = Q + G
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.attention import AttentionPlan, paged_attention
from headrace.kernels.linear import leaf_products, linear
from headrace.kernels.norm import rms_norm
from headrace.kernels.rope import apply_rope
from headrace.kernels.tree import tree_sum
from headrace.models.parallel import AttentionReduce
from headrace.models.setup import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention.

    Attributes:
        qkv_NH: Query, key and value rows of the heads held, stacked.
        qkv_bias_N: Their biases, or None.
        norm_AD: QK-norm weight of each query and key head.
        out_GKH: Output projection by KV head.
        out_bias_H: Added once, to the whole sum; or None.
        num_q_heads: Query heads held.
        num_kv_heads: KV heads held.
        head_dim: D.
        eps: Of QK-norm.
        exact: Canonical products.
        reduce: Joins the ranks' subtrees.
    """

    qkv_NH: Tensor
    qkv_bias_N: Tensor | None
    norm_AD: Tensor
    out_GKH: Tensor
    out_bias_H: Tensor | None
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    exact: bool
    reduce: AttentionReduce

    def project(self, x_TH: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys (both normed and rotated) and values of the heads held.

        Args:
            x_TH: Normed rows in the model dtype.
            rope: From ``RopeTable.rows``.

        Returns:
            ``q_TQD``, ``k_TGD``, ``v_TGD`` in the model dtype; views of fresh tensors.
        """
        qkv_TN = linear(x_TH, self.qkv_NH, self.qkv_bias_N, exact=self.exact)
        heads_TXD = qkv_TN.unflatten(1, (-1, self.head_dim))
        num_rotated = self.num_q_heads + self.num_kv_heads
        rotated_TAD = rms_norm(heads_TXD[:, :num_rotated], self.norm_AD, eps=self.eps)
        rotated_TAD = apply_rope(rotated_TAD, *rope)
        q_TQD, k_TGD = rotated_TAD.split((self.num_q_heads, self.num_kv_heads), dim=1)
        return q_TQD, k_TGD, heads_TXD[:, num_rotated:]

    def attend(self, q_TQD: Tensor, pool_2GNSD: Tensor, plan: AttentionPlan) -> Tensor:
        """Attend over the cache and project out: fp32 ``[T, H]``, summed over all ranks.

        A collective when heads are split.
        """
        out_TQD = paged_attention(q_TQD, pool_2GNSD, plan, scale=self.head_dim**-0.5)
        out_TGK = out_TQD.view(-1, self.num_kv_heads, self.out_GKH.shape[1])
        leaves_GTH = leaf_products(out_TGK, self.out_GKH, exact=self.exact)
        sum_TH = self.reduce(tree_sum(leaves_GTH))
        return sum_TH if self.out_bias_H is None else sum_TH + self.out_bias_H


def load_attention(weights: Weights, prefix: str) -> Attention:
    """Take one layer's attention out of the weights.

    Args:
        weights: This rank's parameters.
        prefix: E.g. ``model.layers.0.self_attn.``.
    """
    setup = weights.setup
    num_q, num_kv = len(setup.shard.q_heads), len(setup.shard.kv_heads)
    has_bias = setup.config.attention_bias
    projections = [f"{prefix}{name}_proj" for name in ("q", "k", "v")]
    q_norm_D = weights.stored(prefix + "q_norm.weight")
    k_norm_D = weights.stored(prefix + "k_norm.weight")
    return Attention(
        qkv_NH=weights.joined(*(f"{name}.weight" for name in projections)),
        qkv_bias_N=weights.joined(*(f"{name}.bias" for name in projections)) if has_bias else None,
        norm_AD=torch.cat((q_norm_D.expand(num_q, -1), k_norm_D.expand(num_kv, -1))),
        out_GKH=weights.leaves(prefix + "o_proj.weight", num_kv),
        out_bias_H=weights.stored(prefix + "o_proj.bias").float() if has_bias else None,
        num_q_heads=num_q,
        num_kv_heads=num_kv,
        head_dim=setup.config.head_dim,
        eps=setup.config.rms_norm_eps,
        exact=setup.exact,
        reduce=setup.reduce,
    )
