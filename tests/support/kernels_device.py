"""Inputs of device kernels, small enough for an interpreter and awkward where it counts."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.gate.route_reference import route
from headrace.kernels.gate.routing import Routing
from headrace.kernels.rope import RopeTable, rope_table


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return fp32 normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def routing_of(
    num_tokens: int, num_experts: int, top_k: int, *, num_rows: int | None = None, seed: int = 0
) -> Routing:
    """Route random logits; rows past ``num_rows`` are padding."""
    logits = normal(num_tokens, num_experts, seed=seed)
    rows = None if num_rows is None else torch.tensor([num_rows], dtype=torch.int32)
    return route(logits, top_k=top_k, renormalize=True, num_rows_1=rows)


def one_expert(num_tokens: int, num_experts: int) -> Routing:
    """Send every token to expert 1 alone."""
    logits = torch.zeros(num_tokens, num_experts)
    logits[:, 1] = 9.0
    return route(logits, top_k=1, renormalize=True)


def experts(num_experts: int, hidden: int, width: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return gate-and-up and down projections."""
    return (
        normal(num_experts, 2 * width, hidden, seed=seed, scale=hidden**-0.5),
        normal(num_experts, hidden, width, seed=seed + 1, scale=width**-0.5),
    )


def real_pairs(routing: Routing) -> Tensor:
    """Return which pairs have an expert."""
    return routing.ids_TK.flatten() >= 0


def small_rope(head_dim: int, num_positions: int = 64) -> RopeTable:
    """Return a rotation table."""
    return rope_table(head_dim, num_positions, theta=1e4)
