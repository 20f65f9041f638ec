"""Grouped-query attention with QK-norm and RoPE over a paged cache: one rank's heads.

Shape letters: T = tokens   H = hidden width   D = head dimension
    Q = query heads held   G = KV heads held (leaves of the output's canonical sum)   A = Q + G
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.attention import AttentionPlan, paged_attention
from headrace.kernels.linear import Dense, Split
from headrace.kernels.norm import rms_norm
from headrace.kernels.rope import apply_rope
from headrace.models.parallel import AttentionReduce
from headrace.models.setup import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention.

    Attributes:
        qkv: Query, key and value projections of the heads held, stacked, with their biases.
        norm_AD: QK-norm weight of each query and key head.
        out: Output projection; a leaf of its sum is a KV head.
        out_bias_H: Added once, to the whole sum; or None.
        num_q_heads: Query heads held.
        num_kv_heads: KV heads held.
        head_dim: D.
        eps: Of QK-norm.
        scale: Of attention logits; 1 where the query heads' norm weight holds it.
        exact: Norms row by row the same bits.
        reduce: Joins the ranks' subtrees.
    """

    qkv: Dense
    norm_AD: Tensor
    out: Split
    out_bias_H: Tensor | None
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float
    exact: bool
    reduce: AttentionReduce

    def project(self, x_TH: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys (both normed and rotated) and values of the heads held.

        Args:
            x_TH: Normed rows.
            rope: From ``RopeTable.rows``.

        Returns:
            ``q_TQD``, ``k_TGD``, ``v_TGD`` in the rows' dtype; views of fresh tensors.
        """
        qkv_TN = self.qkv(x_TH)
        heads_TXD = qkv_TN.unflatten(1, (-1, self.head_dim))
        num_rotated = self.num_q_heads + self.num_kv_heads
        rotated_TAD = rms_norm(
            heads_TXD[:, :num_rotated], self.norm_AD, eps=self.eps, exact=self.exact
        )
        rotated_TAD = apply_rope(rotated_TAD, *rope)
        q_TQD, k_TGD = rotated_TAD.split((self.num_q_heads, self.num_kv_heads), dim=1)
        return q_TQD, k_TGD, heads_TXD[:, num_rotated:]

    def attend(self, q_TQD: Tensor, pool_2GNSD: Tensor, plan: AttentionPlan) -> Tensor:
        """Attend over the cache and project out: fp32 ``[T, H]``, summed over all ranks.

        A collective when heads are split.
        """
        out_TQD = paged_attention(q_TQD, pool_2GNSD, plan, scale=self.scale)
        sum_TH = self.reduce(self.out(out_TQD.flatten(1)))
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
    scale = setup.config.head_dim**-0.5
    projections = [f"{prefix}{name}_proj" for name in ("q", "k", "v")]
    q_norm_D = weights.row(prefix + "q_norm.weight")
    if not setup.exact:
        q_norm_D = q_norm_D * scale
    k_norm_D = weights.row(prefix + "k_norm.weight")
    return Attention(
        qkv=weights.dense(
            *(f"{name}.weight" for name in projections),
            biases=[f"{name}.bias" for name in projections] if has_bias else (),
        ),
        norm_AD=torch.cat((q_norm_D.expand(num_q, -1), k_norm_D.expand(num_kv, -1))),
        out=weights.split(prefix + "o_proj.weight", num_kv),
        out_bias_H=weights.stored(prefix + "o_proj.bias").float() if has_bias else None,
        scale=scale if setup.exact else 1.0,
        num_q_heads=num_q,
        num_kv_heads=num_kv,
        head_dim=setup.config.head_dim,
        eps=setup.config.rms_norm_eps,
        exact=setup.exact,
        reduce=setup.reduce,
    )
