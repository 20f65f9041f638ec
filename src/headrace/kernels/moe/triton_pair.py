"""Grouped experts for very few tokens in Triton: every pair for itself, without matrix units.

With so few pairs hardly two meet at an expert. What counts is that all loads are under way at once:
a program holds a few rows of a weight in registers, and no pipeline has to fill and drain.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor

from headrace.kernels.chain import launch
from headrace.kernels.gate.routing import Routing
from headrace.kernels.moe.triton_pair_down import pair_down_kernel
from headrace.kernels.moe.triton_pair_gate_up import pair_gate_up_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PairKnobs:
    """Launch settings of both kernels.

    Attributes:
        held: Elements of weights that a program of 4 warps holds; a power of two.
        num_warps: Of a program.
    """

    held: int = 4096
    num_warps: int = 4


def grouped_experts(
    x_TH: Tensor,
    routing: Routing,
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    knobs: PairKnobs | None = None,
) -> Tensor:
    """Run experts as ``grouped_reference.grouped_experts``; an expert hit twice is read twice.

    Args:
        x_TH: As in the reference, like the next three; contiguous.
        routing: Likewise.
        gate_up_EJH: Likewise; contiguous.
        down_EHI: Likewise; contiguous.
        knobs: Launch settings.

    Numerics:
        fp32 products and sums, activations rounded to x's dtype between the two products.

    Cost:
        Memory bound: 6*H*I bytes of bf16 a pair. Grids follow from shapes alone: safe to capture.
    """
    (num_tokens, hidden), top_k = x_TH.shape, routing.ids_TK.shape[1]
    width = down_EHI.shape[2]
    num_pairs = num_tokens * top_k
    act_PI = x_TH.new_empty((num_pairs, width))
    out_PH = x_TH.new_empty((num_pairs, hidden))
    if num_pairs == 0:
        return out_PH
    knobs = knobs or PairKnobs()
    block_h, block_width = triton.next_power_of_2(hidden), triton.next_power_of_2(width)
    block_i = max(1, knobs.held // (2 * block_h))
    block_m = max(1, knobs.held // block_width)
    launch(
        pair_gate_up_kernel,
        (triton.cdiv(width, block_i), num_pairs),
        x_TH,
        gate_up_EJH,
        act_PI,
        routing.ids_TK,
        H=hidden,
        I=width,
        TOP_K=top_k,
        BLOCK_I=block_i,
        BLOCK_H=block_h,
        num_warps=knobs.num_warps,
    )
    launch(
        pair_down_kernel,
        (triton.cdiv(hidden, block_m), num_pairs),
        act_PI,
        down_EHI,
        out_PH,
        routing.ids_TK,
        H=hidden,
        I=width,
        BLOCK_M=block_m,
        BLOCK_I=block_width,
        num_warps=knobs.num_warps,
    )
    return out_PH
