"""Paged decode attention in Triton: the launches, of splits and of the merge.

Shape letters:
    B = rows of the batch   H = query heads   G = KV heads   R = H / G   D = head dimension
    N = blocks of the pool  S = token slots of a block       P = width of the block table
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import triton
from torch import Tensor

from headrace.kernels.attention.decode_plan import (
    DecodeKnobs,
    DecodeScratch,
    decode_knobs,
    make_decode_scratch,
)
from headrace.kernels.attention.triton_few import few_rows_split_kernel
from headrace.kernels.attention.triton_merge import merge_kernel
from headrace.kernels.attention.triton_split import split_kernel
from headrace.kernels.chain import launch

# Parts that a program of the merge holds at a time.
MAX_MERGED = 64

# In the interpreter there are no processors; two make programs that take several items each.
INTERPRETED_PROCESSORS = 2


def paged_decode_attention(
    q_BHD: Tensor,
    pool_2GNSD: Tensor,
    block_table_BP: Tensor,
    seq_lens_B: Tensor,
    *,
    scale: float,
    k_scale_G: Tensor | None = None,
    v_scale_G: Tensor | None = None,
    scratch: DecodeScratch | None = None,
    out_BHD: Tensor | None = None,
    knobs: DecodeKnobs | None = None,
) -> Tensor:
    """Attend as ``decode_reference.paged_decode_attention``, with two kernels.

    The first has a fixed number of programs, which share the splits of all rows.

    Args:
        q_BHD: See the reference, as for all arguments up to ``out_BHD``.
        pool_2GNSD: Likewise.
        block_table_BP: Likewise.
        seq_lens_B: Likewise.
        scale: Likewise.
        k_scale_G: Likewise; both scales or none.
        v_scale_G: Likewise.
        scratch: From ``make_decode_scratch`` with the same knobs; one launch at a time may use it.
        out_BHD: See the reference.
        knobs: Launch settings; ``decode_knobs`` chooses when None.

    Returns:
        The output in q's dtype: ``out_BHD`` itself if it was given.

    Numerics:
        Products in q's dtype, sums, maxima and parts in fp32; weights are rounded to q's dtype
        before they meet the values. The order of all sums follows from the row's own length.

    Cost:
        Memory bound. Safe to capture in a CUDA graph when ``scratch`` and ``out_BHD`` are given.

    Source:
        Split KV after Flash-Decoding (arXiv 2311.01282 describes it); online softmax after
        FlashAttention (arXiv 2205.14135).
    """
    return _attend(
        (q_BHD, pool_2GNSD, block_table_BP, seq_lens_B),
        (k_scale_G, v_scale_G),
        scale=scale,
        scratch=scratch,
        out_BHD=out_BHD,
        knobs=knobs,
        few_rows=False,
    )


def paged_decode_attention_few_rows(
    q_BHD: Tensor,
    pool_2GNSD: Tensor,
    block_table_BP: Tensor,
    seq_lens_B: Tensor,
    *,
    scale: float,
    k_scale_G: Tensor | None = None,
    v_scale_G: Tensor | None = None,
    scratch: DecodeScratch | None = None,
    out_BHD: Tensor | None = None,
    knobs: DecodeKnobs | None = None,
) -> Tensor:
    """Attend as ``paged_decode_attention``, with a program for every split that there may be.

    Arguments and result are the same. A program's first tile is on its way before the kernel in
    front has ended, which reads well for few rows and would waste registers for many.
    """
    return _attend(
        (q_BHD, pool_2GNSD, block_table_BP, seq_lens_B),
        (k_scale_G, v_scale_G),
        scale=scale,
        scratch=scratch,
        out_BHD=out_BHD,
        knobs=knobs,
        few_rows=True,
    )


def _attend(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    kv_scales: tuple[Tensor | None, Tensor | None],
    *,
    scale: float,
    scratch: DecodeScratch | None,
    out_BHD: Tensor | None,
    knobs: DecodeKnobs | None,
    few_rows: bool,
) -> Tensor:
    q_BHD, pool_2GNSD, block_table_BP, seq_lens_B = inputs
    batch = q_BHD.shape[0]
    num_kv_heads, block_size, head_dim = (pool_2GNSD.shape[dim] for dim in (1, 3, 4))
    out_BHD = torch.empty_like(q_BHD) if out_BHD is None else out_BHD
    if batch == 0:
        return out_BHD
    if knobs is None:
        knobs = decode_knobs(
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            kv_bytes=pool_2GNSD.element_size(),
            queries_per_kv=q_BHD.shape[1] // num_kv_heads,
            num_rows=batch,
        )
    if scratch is None:
        scratch = make_decode_scratch(
            batch,
            block_table_BP.shape[1] * block_size,
            num_kv_heads=num_kv_heads,
            queries_per_kv=q_BHD.shape[1] // num_kv_heads,
            head_dim=head_dim,
            knobs=knobs,
            device=q_BHD.device,
        )
    launch_split = _launch_few_rows_split if few_rows else _launch_split
    launch_split(inputs, kv_scales, out_BHD, scratch, knobs, scale=scale)
    if scratch.parts_BGXRD.shape[2] > 1:
        _launch_merge(seq_lens_B, out_BHD, scratch, knobs)
    return out_BHD


def _launch_split(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    kv_scales: tuple[Tensor | None, Tensor | None],
    out_BHD: Tensor,
    scratch: DecodeScratch,
    knobs: DecodeKnobs,
    *,
    scale: float,
) -> None:
    batch = out_BHD.shape[0]
    _, num_kv_heads, num_splits, _, _ = scratch.parts_BGXRD.shape
    num_programs = _num_processors(out_BHD.device) * knobs.programs_per_processor
    launch(
        split_kernel,
        (min(num_programs, batch * num_kv_heads * num_splits),),
        *inputs,
        out_BHD,
        scratch.parts_BGXRD,
        scratch.lses_BGXR,
        *kv_scales,
        scale * math.log2(math.e),
        batch,
        *_strides(inputs, out_BHD, scratch),
        G=num_kv_heads,
        B_PAD=max(32, triton.next_power_of_2(batch)),
        num_warps=knobs.num_warps,
        maxnreg=knobs.max_registers,
        **_sizes(inputs, kv_scales, scratch, knobs),
    )


def _launch_few_rows_split(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    kv_scales: tuple[Tensor | None, Tensor | None],
    out_BHD: Tensor,
    scratch: DecodeScratch,
    knobs: DecodeKnobs,
    *,
    scale: float,
) -> None:
    _, num_kv_heads, num_splits, _, _ = scratch.parts_BGXRD.shape
    launch(
        few_rows_split_kernel,
        (num_splits, num_kv_heads, out_BHD.shape[0]),
        *inputs,
        out_BHD,
        scratch.parts_BGXRD,
        scratch.lses_BGXR,
        *kv_scales,
        scale * math.log2(math.e),
        *_strides(inputs, out_BHD, scratch),
        num_warps=knobs.num_warps,
        **_sizes(inputs, kv_scales, scratch, knobs),
    )


def _strides(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], out_BHD: Tensor, scratch: DecodeScratch
) -> tuple[int, ...]:
    q_BHD, pool_2GNSD, block_table_BP, _ = inputs
    return (
        *q_BHD.stride()[:2],
        *pool_2GNSD.stride()[:2],
        block_table_BP.stride(0),
        *out_BHD.stride()[:2],
        *scratch.lses_BGXR.stride()[:2],
    )


def _sizes(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    kv_scales: tuple[Tensor | None, Tensor | None],
    scratch: DecodeScratch,
    knobs: DecodeKnobs,
) -> dict[str, int | bool]:
    queries_per_kv, head_dim = scratch.parts_BGXRD.shape[3:]
    return {
        "R": queries_per_kv,
        "R_PAD": max(16, triton.next_power_of_2(queries_per_kv)),
        "D": head_dim,
        "S": inputs[1].shape[3],
        "K": knobs.tile_tokens,
        "HAS_SCALES": kv_scales[0] is not None,
        "NUM_STAGES": knobs.num_stages,
        **_split_rule(knobs),
    }


def _launch_merge(
    seq_lens_B: Tensor, out_BHD: Tensor, scratch: DecodeScratch, knobs: DecodeKnobs
) -> None:
    batch, num_heads, head_dim = out_BHD.shape
    launch(
        merge_kernel,
        (batch, num_heads),
        scratch.parts_BGXRD,
        scratch.lses_BGXR,
        seq_lens_B,
        out_BHD,
        scratch.lses_BGXR.stride(0),
        scratch.lses_BGXR.stride(1),
        out_BHD.stride(0),
        out_BHD.stride(1),
        R=scratch.lses_BGXR.shape[3],
        D=head_dim,
        C=min(MAX_MERGED, triton.next_power_of_2(scratch.lses_BGXR.shape[2])),
        TILE_TOKENS=knobs.tile_tokens,
        num_warps=4,
        **_split_rule(knobs),
    )


def _split_rule(knobs: DecodeKnobs) -> dict[str, int]:
    return {
        "BASE_TOKENS": knobs.base_tokens,
        "MAX_SPLITS": knobs.max_splits,
    }


@lru_cache(maxsize=16)
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
