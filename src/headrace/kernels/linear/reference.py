"""Plain-torch canonical products.

An exact product is computed in fp32 over a multiple of 16 rows. Under that rule the CPU library's
rows were measured to be independent of the other rows, of the row count and of how the columns
are split (slices of 16 and more); below it they are not. Products of bf16 operands are exact in
fp32, so the only roundings are those of the sums and the caller's last one.

Shape letters: T = rows (tokens)   K = inner width   N = columns   S = leaves of a canonical sum
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_MULTIPLE = 16


def pad_rows(x_TK: Tensor) -> Tensor:
    """Return fp32 rows, zero rows appended up to a multiple of ``ROW_MULTIPLE``.

    Shares memory with the input when nothing has to change.
    """
    missing = -x_TK.shape[0] % ROW_MULTIPLE
    if missing:
        x_TK = torch.constant_pad_nd(x_TK, (0, 0) * (x_TK.dim() - 1) + (0, missing))
    return x_TK.float()


def linear(
    x_TK: Tensor,
    weight_NK: Tensor,
    bias_N: Tensor | None = None,
    *,
    exact: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply rows by a weight: ``x @ weight.T + bias``.

    Args:
        x_TK: Rows of any float dtype; T may be 0. Not modified.
        weight_NK: fp32 when ``exact`` (a compute copy of bf16 weights), otherwise x's dtype.
        bias_N: Added before the rounding, in the weight's dtype; optional.
        exact: Canonical product; otherwise the library's own in the native dtype.
        out_dtype: Dtype of the result; x's when not given.

    Returns:
        ``[T, N]``, rounded once; freshly allocated.

    Numerics:
        Exact: row t depends on row t only, and columns do not depend on a split of the weight into
        slices of at least 16 rows. Error at most twice that of the same product in x's dtype.

    Cost:
        2*T*K*N FLOPs with T rounded up to 16; reads the weight once. No host sync.
    """
    out_dtype = out_dtype or x_TK.dtype
    if not exact:
        return F.linear(x_TK, weight_NK, bias_N).to(out_dtype)
    num_rows = x_TK.shape[0]
    y_TN = torch.mm(pad_rows(x_TK), weight_NK.t())
    if bias_N is not None:
        y_TN += bias_N
    return y_TN[:num_rows].to(out_dtype)


def leaf_products(x_TSK: Tensor, weight_SKN: Tensor, *, exact: bool = True) -> Tensor:
    """Compute the partials of a product whose inner width is cut into S leaves.

    Args:
        x_TSK: Rows, their inner width already cut: ``x.view(T, S, K)``. Not modified.
        weight_SKN: Leaf s holds the weight's columns of that part, transposed; contiguous. fp32
            when ``exact``, otherwise x's dtype.
        exact: As in ``linear``.

    Returns:
        fp32 ``[S, T, N]``; ``tree_sum`` of it over S is the product.

    Numerics:
        As ``linear``; a leaf does not depend on the other leaves present.

    Cost:
        2*T*S*K*N FLOPs with T rounded up to 16; writes 4*S*T*N bytes. No host sync.
    """
    num_rows = x_TSK.shape[0]
    if not exact:
        return torch.bmm(x_TSK.transpose(0, 1), weight_SKN).float()
    return torch.bmm(pad_rows(x_TSK).transpose(0, 1), weight_SKN)[:, :num_rows]
