"""Experts of a real width for device tests: their inputs, and what fp64 and torch make of them.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I   R = pairs of an expert
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.gate.route_reference import route
from headrace.kernels.gate.routing import Routing
from headrace.kernels.norm import rms_norm
from tests.support.kernels_device import normal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """Sizes of an expert layer, and the device and dtype that it lies in."""

    num_experts: int
    top_k: int
    hidden: int
    width: int
    device: str
    dtype: torch.dtype

    def rows(self, num_tokens: int, *, seed: int = 0) -> Tensor:
        """Return ``[T, H]`` rows."""
        return normal(num_tokens, self.hidden, seed=seed).to(self.device, self.dtype)

    def logits(self, num_tokens: int, *, seed: int = 0) -> Tensor:
        """Return ``[T, E]`` gate logits."""
        return normal(num_tokens, self.num_experts, seed=seed).to(self.device, self.dtype)

    def count(self, num_rows: int) -> Tensor:
        """Return a number of real rows as kernels take it."""
        return torch.tensor([num_rows], dtype=torch.int32, device=self.device)

    def route(self, logits_TE: Tensor, *, num_rows: int | None = None) -> Routing:
        """Route by the reference; rows past ``num_rows`` are padding."""
        rows = None if num_rows is None else self.count(num_rows)
        return route(logits_TE, top_k=self.top_k, renormalize=True, num_rows_1=rows)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return gate-and-up and down projections, drawn where they lie."""
        generator = torch.Generator(self.device).manual_seed(1)
        return (
            self._draw(generator, 2 * self.width, self.hidden),
            self._draw(generator, self.hidden, self.width),
        )

    def _draw(self, generator: torch.Generator, rows: int, columns: int) -> Tensor:
        drawn = torch.empty((self.num_experts, rows, columns), device=self.device, dtype=self.dtype)
        return drawn.normal_(0.0, columns**-0.5, generator=generator)


def run_experts(
    x_TH: Tensor, routing: Routing, weights: tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor:
    """Run experts one by one in a dtype, every step rounded to it: fp64 is the truth."""
    gate_up_EJH, down_EHI = weights
    top_k = routing.ids_TK.shape[1]
    ids_P = routing.ids_TK.flatten()
    out_PH = torch.zeros((len(ids_P), x_TH.shape[1]), dtype=dtype, device=x_TH.device)
    for expert in torch.unique(ids_P[ids_P >= 0]).tolist():
        pairs_R = (ids_P == expert).nonzero().flatten()
        gate, up = F.linear(x_TH[pairs_R // top_k].to(dtype), gate_up_EJH[expert].to(dtype)).chunk(
            2, dim=-1
        )
        out_PH[pairs_R] = F.linear(F.silu(gate) * up, down_EHI[expert].to(dtype))
    return out_PH


def run_combine(
    out_PH: Tensor, routing: Routing, residual_TH: Tensor, weight_H: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Combine in a dtype, every step rounded to it: fp64 is the truth. No row is padding."""
    num_tokens, top_k = routing.ids_TK.shape
    parts_TKH = out_PH.to(dtype).view(num_tokens, top_k, out_PH.shape[1])
    parts_TKH = parts_TKH * routing.weights_TK[:, :, None].to(dtype)
    stream_TH = residual_TH.to(dtype) + parts_TKH.sum(1)
    if dtype is not torch.float64:
        return rms_norm(stream_TH, weight_H.to(dtype), eps=1e-6), stream_TH
    # The reference of the norm computes in fp32.
    scale_T1 = torch.rsqrt(stream_TH.square().mean(-1, keepdim=True) + 1e-6)
    return stream_TH * scale_T1 * weight_H.double(), stream_TH
