"""The embedded model's target and MTP layer, written for fast training rather than serving.

Every expert runs on every token and those a token did not select are multiplied by zero.
At this size that is two dense matrix products per layer, which a large accelerator finishes
sooner than it could sort tokens by expert; the result is the same top-k mixture.

Left out on purpose: caches, sharding, padding masks (callers pad on the right, where causal
attention cannot see it).

Shape letters in this file (logical sizes):
    B = rows      T = positions      C = hidden size      V = vocabulary entries
    H = query heads     G = key/value heads (H % G == 0)     D = head dimension
    E = experts         I = width of one expert
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyConfig:
    """Sizes of the target; the MTP layer repeats the shape of one of its layers."""

    vocab_size: int = 4096
    hidden_size: int = 160
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 32
    num_experts: int = 16
    experts_per_token: int = 4
    expert_width: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_positions: int = 8192


class RMSNorm(nn.Module):
    """``weight * x / rms(x)``, in float32: Qwen3's form, not the ``1 + weight`` of Qwen3-Next."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return (x32 * scale * self.weight).to(x.dtype)


def rope_tables(config: TinyConfig, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[T, D]`` of positions 0..length-1, both halves alike (rotate-half)."""
    half = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    frequency = config.rope_theta ** (-half / config.head_dim)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    angle_TD = torch.cat((angle, angle), dim=-1)
    return angle_TD.cos(), angle_TD.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + D/2) of the last axis by its position's angle."""
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention with RMS-normalised queries and keys."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        query, key = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x_BTC: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        split = (-1, self.config.head_dim)
        q_BTHD = self.q_norm(self.q_proj(x_BTC).unflatten(-1, split))
        k_BTGD = self.k_norm(self.k_proj(x_BTC).unflatten(-1, split))
        v_BTGD = self.v_proj(x_BTC).unflatten(-1, split)
        q_BHTD = rotate(q_BTHD.transpose(1, 2), rope)
        k_BGTD = rotate(k_BTGD.transpose(1, 2), rope)
        out_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BGTD, v_BTGD.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.o_proj(out_BHTD.transpose(1, 2).flatten(-2))


class Experts(nn.Module):
    """Top-k mixture of gated MLPs; returns its output and the load-balancing loss."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        experts, width, hidden = config.num_experts, config.expert_width, config.hidden_size
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.gate_proj_EIC = nn.Parameter(torch.empty(experts, width, hidden))
        self.up_proj_EIC = nn.Parameter(torch.empty(experts, width, hidden))
        self.down_proj_ECI = nn.Parameter(torch.empty(experts, hidden, width))

    def route(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of all experts, and mixture weights that are zero where not selected."""
        # Float32 whatever autocast says: a rounded tie would change which experts run.
        with torch.autocast(x_BTC.device.type, enabled=False):
            prob_BTE = F.linear(x_BTC.float(), self.gate.weight.float()).softmax(dim=-1)
        top, index = prob_BTE.topk(self.config.experts_per_token, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        return prob_BTE, torch.zeros_like(prob_BTE).scatter(-1, index, top)

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        prob_BTE, weight_BTE = self.route(x_BTC)
        gate = F.linear(x_BTC, self.gate_proj_EIC.flatten(0, 1))
        up = F.linear(x_BTC, self.up_proj_EIC.flatten(0, 1))
        inner = (F.silu(gate) * up).unflatten(-1, (self.config.num_experts, -1))
        inner = inner * weight_BTE[..., None].to(inner.dtype)
        out = F.linear(inner.flatten(-2), self.down_proj_ECI.transpose(0, 1).flatten(1))
        # Share of selections times mean probability, summed: 1 when the experts are used evenly.
        share_E = (weight_BTE > 0).float().mean((0, 1)) / self.config.experts_per_token
        return out, self.config.num_experts * (share_E * prob_BTE.mean((0, 1))).sum()


class Layer(nn.Module):
    """One decoder layer: attention, then experts, each on a normalised residual stream."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Experts(config)

    def forward(self, x_BTC: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), rope)
        mixed, balance = self.mlp(self.post_attention_layernorm(x_BTC))
        return x_BTC + mixed, balance


class Target(nn.Module):
    """The Qwen3-MoE language model; its output head is the embedding table (tied)."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.apply(lambda module: initialise(module, config))

    def forward(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states ``[B, T, C]`` after the final norm, and the balancing loss."""
        x_BTC = self.embed_tokens(tokens_BT)
        rope = rope_tables(self.config, tokens_BT.shape[1], tokens_BT.device)
        balance = x_BTC.new_zeros(())
        for layer in self.layers:
            x_BTC, loss = layer(x_BTC, rope)
            balance = balance + loss
        return self.norm(x_BTC), balance / len(self.layers)

    def logits(self, hidden_BTC: Tensor) -> Tensor:
        return F.linear(hidden_BTC, self.embed_tokens.weight)


class Mtp(nn.Module):
    """Multi-token prediction in Qwen3-Next's naming: from h_t and token t+1, guess token t+2.

    ``h_t`` is the target's hidden state *after* its final norm.  Embedding table and output
    head are the target's.
    """

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = RMSNorm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = RMSNorm(hidden, eps)
        self.apply(lambda module: initialise(module, config))

    def forward(self, embedding_BTC: Tensor, hidden_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """``embedding_BTC[:, t]`` embeds token t+1; returns states for the head, and balance."""
        embedding_BTC = self.pre_fc_norm_embedding(embedding_BTC)
        hidden_BTC = self.pre_fc_norm_hidden(hidden_BTC)
        x_BTC = self.fc(torch.cat((embedding_BTC, hidden_BTC), dim=-1))
        rope = rope_tables(self.config, x_BTC.shape[1], x_BTC.device)
        x_BTC, balance = self.layers[0](x_BTC, rope)
        return self.norm(x_BTC), balance


def initialise(module: nn.Module, config: TinyConfig) -> None:
    """Normal weights: small for the tied table, half of 1/sqrt(inputs) for matrices."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
    elif isinstance(module, Experts):
        for weight in (module.gate_proj_EIC, module.up_proj_EIC, module.down_proj_ECI):
            nn.init.normal_(weight, std=0.5 * weight.shape[-1] ** -0.5)
    if isinstance(module, Layer):
        # Each layer adds two branches; their sum should not outgrow the stream with depth.
        with torch.no_grad():
            for branch in (module.self_attn.o_proj.weight, module.mlp.down_proj_ECI):
                branch.mul_((2 * config.num_layers) ** -0.5)
