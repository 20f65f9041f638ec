"""Device sampling in Triton: five launches that serve any mixture of rows.

scan (all chunks), merge (a program per row; greedy and plain rows end here), gather and select
(rows with filters), search (rows whose filters leave very many tokens). A program whose row has
no use for its pass returns at once, so the launches are the same for every batch.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.kernels.sampling.triton_gather import gather_kernel
from headrace.kernels.sampling.triton_merge import merge_kernel
from headrace.kernels.sampling.triton_scan import scan_kernel
from headrace.kernels.sampling.triton_search import search_kernel
from headrace.kernels.sampling.triton_select import select_kernel


def device_sample(
    logits_BV: Tensor, batch: DeviceSamplingBatch, *, out: DeviceSampled | None = None
) -> DeviceSampled:
    """See ``family.device_sample``."""
    num_rows, vocab_size = logits_BV.shape
    if out is None:
        out = DeviceSampled.empty(num_rows, device=logits_BV.device)
    if num_rows == 0:
        return out
    if num_rows > batch.capacity or vocab_size != batch.vocab_size or logits_BV.stride(1) != 1:
        raise ValueError(
            f"logits {tuple(logits_BV.shape)} with strides {logits_BV.stride()} do not fit a batch"
            f" of {batch.capacity} rows over {batch.vocab_size} tokens"
        )
    launch_scan(logits_BV, batch)
    launch_merge(logits_BV, batch, out)
    launch_gather(logits_BV, batch)
    launch_select(logits_BV, batch, out)
    launch_search(logits_BV, batch, out)
    return out


def _settings(logits_BV: Tensor, batch: DeviceSamplingBatch) -> tuple:
    words_BW = batch.settings_BW
    return (
        logits_BV,
        logits_BV.stride(0),
        words_BW,
        words_BW.view(torch.float64),
        batch.seen.seen_PV,
    )


def launch_scan(logits_BV: Tensor, batch: DeviceSamplingBatch) -> None:
    work, knobs = batch.workspace, batch.workspace.knobs
    num_rows, vocab_size = logits_BV.shape
    num_chunks = knobs.num_chunks(vocab_size)
    scan_kernel[(num_chunks, num_rows)](
        *_settings(logits_BV, batch),
        batch.bias_tokens_BM,
        batch.bias_values_BM,
        work.chunk_floats_BC,
        work.chunk_ints_BC,
        work.sub_max_BU,
        vocab_size,
        batch.capacity,
        num_chunks,
        CHUNK=knobs.chunk,
        SUB=knobs.sub_block,
        MAX_BIAS=batch.bias_tokens_BM.shape[1],
        num_warps=knobs.scan_warps,
        maxnreg=knobs.scan_registers,
        enable_fp_fusion=False,
    )


def launch_merge(logits_BV: Tensor, batch: DeviceSamplingBatch, out: DeviceSampled) -> None:
    work, knobs = batch.workspace, batch.workspace.knobs
    num_rows, vocab_size = logits_BV.shape
    num_chunks = knobs.num_chunks(vocab_size)
    num_subs = knobs.num_sub_blocks(vocab_size)
    merge_kernel[(num_rows,)](
        *_settings(logits_BV, batch),
        work.chunk_floats_BC,
        work.chunk_ints_BC,
        work.sub_max_BU,
        work.row_ints_B,
        work.row_floats_B,
        out.token_ids_B,
        out.ok_B,
        out.logprob_B,
        vocab_size,
        batch.capacity,
        num_chunks,
        num_subs,
        knobs.wide_count(vocab_size),
        CHUNK_TILE=triton.next_power_of_2(num_chunks),
        SUB_TILE=triton.next_power_of_2(num_subs),
        SUBS=knobs.chunk // knobs.sub_block,
        num_warps=knobs.merge_warps,
        enable_fp_fusion=False,
    )


def launch_gather(logits_BV: Tensor, batch: DeviceSamplingBatch) -> None:
    work, knobs = batch.workspace, batch.workspace.knobs
    num_rows, vocab_size = logits_BV.shape
    num_chunks = knobs.num_chunks(vocab_size)
    gather_kernel[(num_chunks, num_rows)](
        *_settings(logits_BV, batch),
        batch.bias_tokens_BM,
        batch.bias_values_BM,
        work.sub_max_BU,
        work.row_ints_B,
        work.found_ids_BN,
        work.found_x_BN,
        vocab_size,
        num_chunks,
        CHUNK=knobs.chunk,
        SUB=knobs.sub_block,
        MAX_BIAS=batch.bias_tokens_BM.shape[1],
        CAPACITY=knobs.capacity,
        num_warps=knobs.scan_warps,
        enable_fp_fusion=False,
    )


def launch_select(logits_BV: Tensor, batch: DeviceSamplingBatch, out: DeviceSampled) -> None:
    work, knobs = batch.workspace, batch.workspace.knobs
    select_kernel[(len(logits_BV),)](
        *_settings(logits_BV, batch),
        work.row_ints_B,
        work.row_floats_B,
        work.found_ids_BN,
        work.found_x_BN,
        out.token_ids_B,
        out.ok_B,
        out.logprob_B,
        batch.vocab_size,
        SMALL=knobs.small,
        CAPACITY=knobs.capacity,
        num_warps=knobs.select_warps,
        enable_fp_fusion=False,
    )


def launch_search(logits_BV: Tensor, batch: DeviceSamplingBatch, out: DeviceSampled) -> None:
    work, knobs = batch.workspace, batch.workspace.knobs
    search_kernel[(len(logits_BV),)](
        *_settings(logits_BV, batch),
        batch.bias_tokens_BM,
        batch.bias_values_BM,
        work.row_ints_B,
        work.row_floats_B,
        out.token_ids_B,
        out.ok_B,
        out.logprob_B,
        batch.vocab_size,
        BLOCK=knobs.block,
        MAX_BIAS=batch.bias_tokens_BM.shape[1],
        num_warps=knobs.search_warps,
        enable_fp_fusion=False,
    )
