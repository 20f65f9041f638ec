"""Grouped experts for long chunks in Triton: two grouped products.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from headrace.kernels.gate.routing import Routing
from headrace.kernels.moe.triton_prefill_down import down_prefill_kernel
from headrace.kernels.moe.triton_prefill_gate_up import gate_up_prefill_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillKnobs:
    """Launch settings of both kernels.

    Attributes:
        block_m: Tokens of a tile.
        block_i: Columns of a tile of the first kernel: as many gates as ups.
        block_n: Columns of a tile of the second.
        block_k: Inner width of a step.
        stages_up: Steps in flight in the first kernel.
        stages_down: Steps in flight in the second.
        num_warps: Of both.
    """

    block_m: int = 128
    block_i: int = 128
    block_n: int = 256
    block_k: int = 64
    stages_up: int = 4
    stages_down: int = 4
    num_warps: int = 8


def grouped_experts(
    x_TH: Tensor,
    routing: Routing,
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    knobs: PrefillKnobs | None = None,
) -> Tensor:
    """Run experts as ``grouped_reference.grouped_experts``, in tiles of an expert's tokens.

    Args:
        x_TH: As in the reference, like the next three.
        routing: Likewise.
        gate_up_EJH: Likewise; contiguous.
        down_EHI: Likewise; contiguous.
        knobs: Launch settings; the defaults when None.

    Cost:
        6*P*H*I FLOPs, rounded up to whole tiles of each expert. The grid is the most tiles that
        any routing makes; those without tokens end at once. No host sync.
    """
    (num_tokens, hidden), top_k = x_TH.shape, routing.ids_TK.shape[1]
    num_experts, width = down_EHI.shape[0], down_EHI.shape[2]
    num_pairs = num_tokens * top_k
    act_PI = x_TH.new_empty((num_pairs, width))
    out_PH = x_TH.new_empty((num_pairs, hidden))
    if num_pairs == 0:
        return out_PH
    knobs = knobs or PrefillKnobs()
    # Each expert may leave one tile part full.
    num_tiles = num_pairs // knobs.block_m + min(num_experts, num_pairs)
    tables = (routing.order_P, routing.starts_E1)
    sizes = {
        "E": num_experts,
        "E_PAD": triton.next_power_of_2(num_experts),
        "H": hidden,
        "I": width,
        "BLOCK_M": knobs.block_m,
        "PRECISION": "ieee" if x_TH.dtype is torch.float32 else "tf32",
        "num_warps": knobs.num_warps,
    }
    gate_up_prefill_kernel[(num_tiles * triton.cdiv(width, knobs.block_i),)](
        x_TH,
        gate_up_EJH,
        act_PI,
        *tables,
        TOP_K=top_k,
        BLOCK_I=knobs.block_i,
        BLOCK_H=knobs.block_k,
        NUM_STAGES=knobs.stages_up,
        **sizes,
    )
    down_prefill_kernel[(num_tiles * triton.cdiv(hidden, knobs.block_n),)](
        act_PI,
        down_EHI,
        out_PH,
        *tables,
        BLOCK_N=knobs.block_n,
        BLOCK_I=knobs.block_k,
        NUM_STAGES=knobs.stages_down,
        **sizes,
    )
    return out_PH
