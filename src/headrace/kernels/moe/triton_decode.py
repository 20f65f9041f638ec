"""Grouped experts for decode steps in Triton: two launches that read each hit expert once.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
    H = hidden width   I = expert width   J = 2I
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.chain import launch
from headrace.kernels.gate.routing import Routing
from headrace.kernels.moe.triton_decode_down import down_decode_kernel
from headrace.kernels.moe.triton_decode_gate_up import gate_up_decode_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeKnobs:
    """Launch settings of both kernels.

    Attributes:
        block_i: Gate rows of a tile of the first kernel, which has as many up rows.
        block_m: Rows of a tile of the second.
        block_n: Tokens of a tile; an expert with more is read again, from L2 as a rule.
        block_h: Inner width of a step of the first kernel.
        block_k: Inner width of a step of the second.
        stages_up: Steps in flight in the first kernel.
        stages_down: Steps in flight in the second.
        num_warps: Of both.
    """

    block_i: int = 64
    block_m: int = 128
    block_n: int = 16
    block_h: int = 128
    block_k: int = 128
    stages_up: int = 3
    stages_down: int = 3
    num_warps: int = 4


def decode_knobs(num_tokens: int) -> DecodeKnobs:
    """Choose settings for steps of that many rows.

    Measured on an H200, 128 experts of width 768 under hidden 2048, top 8 (us, of a floor): 27 of
    17 for 1 row, 130 of 116 for 8, 247 of 240 for 32, 283 of 275 for 128, 298 of 275 for 256. At
    128 rows an expert has 8 on average, and a second pass over a weight that lies in L2 costs less
    than tiles of 32 that are mostly empty (318).
    """
    if num_tokens <= 192:
        return DecodeKnobs()
    return DecodeKnobs(block_n=32, block_h=64, block_k=64, stages_up=5, stages_down=5)


def grouped_experts(
    x_TH: Tensor,
    routing: Routing,
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    knobs: DecodeKnobs | None = None,
) -> Tensor:
    """Run experts as ``grouped_reference.grouped_experts``, reading each one that is hit once.

    Args:
        x_TH: As in the reference, like the next three.
        routing: Likewise.
        gate_up_EJH: Likewise; contiguous.
        down_EHI: Likewise; contiguous.
        knobs: Launch settings; ``decode_knobs`` chooses when None.

    Cost:
        Memory bound while experts have few tokens: 6*H*I bytes of bf16 for each that is hit.
        Grids follow from shapes alone: safe to capture. No host sync.
    """
    (num_tokens, hidden), top_k = x_TH.shape, routing.ids_TK.shape[1]
    num_experts, width = down_EHI.shape[0], down_EHI.shape[2]
    num_pairs = num_tokens * top_k
    act_PI = x_TH.new_empty((num_pairs, width))
    out_PH = x_TH.new_empty((num_pairs, hidden))
    if num_pairs == 0:
        return out_PH
    knobs = knobs or decode_knobs(num_tokens)
    num_places = min(num_pairs, num_experts)
    tables = (routing.ids_TK, routing.order_P, routing.starts_E1)
    by_pair, precision = num_pairs < num_experts, "ieee" if x_TH.dtype is torch.float32 else "tf32"
    common = {"H": hidden, "I": width, "BY_PAIR": by_pair, "PRECISION": precision}
    common |= {"BLOCK_N": knobs.block_n, "num_warps": knobs.num_warps}
    launch(
        gate_up_decode_kernel,
        (-(-width // knobs.block_i), num_places),
        x_TH,
        gate_up_EJH,
        act_PI,
        *tables,
        TOP_K=top_k,
        BLOCK_I=knobs.block_i,
        BLOCK_H=knobs.block_h,
        NUM_STAGES=knobs.stages_up,
        **common,
    )
    launch(
        down_decode_kernel,
        (-(-hidden // knobs.block_m), num_places),
        act_PI,
        down_EHI,
        out_PH,
        *tables,
        BLOCK_M=knobs.block_m,
        BLOCK_I=knobs.block_k,
        NUM_STAGES=knobs.stages_down,
        **common,
    )
    return out_PH
