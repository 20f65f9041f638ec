"""RMSNorm in Triton, alone or after a residual add: a program a row.

Shape letters: T = rows   H = normalised width
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.chain import launch, let_next_begin, wait_for_before


@triton.jit
def norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    stream_ptr,
    eps,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    ADDS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Norm one row; with ``ADDS`` the sum of the row and the stream, which is written too.

    Reads the weight before it waits.
    """
    let_next_begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_H)
    is_in = columns < H
    dtype = normed_ptr.dtype.element_ty
    weight = tl.load(weight_ptr + columns, mask=is_in, other=0.0).to(tl.float32)
    wait_for_before(CHAINED)
    x = tl.load(x_ptr + row * H + columns, mask=is_in, other=0.0).to(dtype).to(tl.float32)
    if ADDS:
        residual = tl.load(residual_ptr + row * H + columns, mask=is_in, other=0.0)
        stream = (residual.to(tl.float32) + x).to(dtype)
        tl.store(stream_ptr + row * H + columns, stream, mask=is_in)
        x = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / H + eps)
    normed = (x * scale).to(dtype).to(tl.float32) * weight
    tl.store(normed_ptr + row * H + columns, normed.to(dtype), mask=is_in)


def rms_norm(x_TH: Tensor, weight_H: Tensor, *, eps: float) -> Tensor:
    """Norm rows as ``reference.rms_norm``, in one launch. ``x_TH`` is contiguous."""
    normed_TH = torch.empty_like(x_TH)
    _launch(x_TH, x_TH, weight_H, normed_TH, normed_TH, eps=eps, adds=False)
    return normed_TH


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Add and norm as ``reference.add_rms_norm``, in one launch. Both inputs are contiguous."""
    normed_TH, stream_TH = torch.empty_like(residual_TH), torch.empty_like(residual_TH)
    _launch(x_TH, residual_TH, weight_H, normed_TH, stream_TH, eps=eps, adds=True)
    return normed_TH, stream_TH


def _launch(
    x_TH: Tensor,
    residual_TH: Tensor,
    weight_H: Tensor,
    normed_TH: Tensor,
    stream_TH: Tensor,
    *,
    eps: float,
    adds: bool,
) -> None:
    num_rows, width = x_TH.shape
    if num_rows == 0:
        return
    block = triton.next_power_of_2(width)
    launch(
        norm_kernel,
        (num_rows,),
        x_TH,
        residual_TH,
        weight_H,
        normed_TH,
        stream_TH,
        eps,
        H=width,
        BLOCK_H=block,
        ADDS=adds,
        num_warps=max(1, min(16, block // 512)),
    )
