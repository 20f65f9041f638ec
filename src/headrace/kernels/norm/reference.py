"""Plain-torch RMSNorm.

Shape letters: T = rows (tokens, or tokens times heads)   H = normalised width
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.norm.batched import rms_norm_batched

# Up to here the number of operators counts, above it the passes over memory (measured: 9 us
# against 16 for 1 x 512 elements, 87 against 63 for 64 x 512).
MAX_BATCHED_ELEMENTS = 1 << 13


def rms_norm(x_TH: Tensor, weight_H: Tensor, *, eps: float, exact: bool = True) -> Tensor:
    """Scale each row to unit mean square, then by the weight.

    Args:
        x_TH: Rows; leading axes are free. Not modified.
        weight_H: In x's dtype; may have leading axes that broadcast (one weight a head).
        eps: Added to the mean square.
        exact: Row by row the same bits; otherwise few fp32 rows take ``rms_norm_batched``.

    Returns:
        x's shape and dtype.

    Numerics:
        Mean square and scaling in fp32, rounded to x's dtype before the weight is applied, as the
        reference library does. Row-local.

    Cost:
        Memory bound: reads and writes each row once. No host sync.
    """
    if not exact and x_TH.dtype is torch.float32 and x_TH.numel() <= MAX_BATCHED_ELEMENTS:
        return rms_norm_batched(x_TH, weight_H, eps=eps)
    x_fp32 = x_TH.float()
    mean_square = x_fp32.square().mean(-1, keepdim=True)
    return (x_fp32 * torch.rsqrt(mean_square.add_(eps))).to(x_TH.dtype) * weight_H


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, *, eps: float, exact: bool = True
) -> tuple[Tensor, Tensor]:
    """Add a branch to the residual stream and normalise the sum.

    Args:
        x_TH: The branch's output: the residual's dtype, or a fp32 sum that is rounded to it first.
        residual_TH: The stream. Not modified.
        weight_H: As in ``rms_norm``.
        eps: As in ``rms_norm``.
        exact: As in ``rms_norm``.

    Returns:
        The normalised rows and the new residual stream, both in the residual's dtype.

    Numerics:
        One rounding of x, one of the sum, then as ``rms_norm``: what the unsharded reference does.
    """
    residual_TH = residual_TH + x_TH.to(residual_TH.dtype)
    return rms_norm(residual_TH, weight_H, eps=eps, exact=exact), residual_TH
