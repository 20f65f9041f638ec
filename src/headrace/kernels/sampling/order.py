"""A total order of a row's tokens: by logit downwards, equal logits by token id upwards.

``torch.topk`` promises nothing about ties, and which of them it returns depends on k. Ordering
unique integers instead makes the first k tokens a prefix of the first k + 1, always.

Shape letters in this file:
    R = rows    V = vocabulary    K = tokens wanted
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_WORD = 0xFFFFFFFF


def top_tokens(x_RV: Tensor, k: int) -> Tensor:
    """Return the ids of the k greatest entries of each row, greatest first.

    Args:
        x_RV: fp32, finite. Not modified.
        k: Tokens wanted, at most V.

    Returns:
        int64 ``[R, K]``.

    Cost:
        One selection of k among V per row and one comparison pass; a full sort when k = V or
        when more than k tokens reach the k-th logit.
    """
    num_tokens = x_RV.shape[1]
    if k < num_tokens:
        top_RK = torch.topk(x_RV, k, dim=-1)
        is_tied = (x_RV >= top_RK.values[:, -1:]).sum(dim=-1) > k
        if not bool(is_tied.any()):  # the set is certain, only its inner order is not
            ids_RK = top_RK.indices
            order_RK = torch.sort(
                unique_keys(top_RK.values, ids_RK), dim=-1, descending=True
            ).indices
            return ids_RK.gather(1, order_RK)
    keys_RV = unique_keys(x_RV, torch.arange(num_tokens, device=x_RV.device))
    return _LOW_WORD - (torch.sort(keys_RV, dim=-1, descending=True).values[:, :k] & _LOW_WORD)


def unique_keys(x_RK: Tensor, token_ids_RK: Tensor) -> Tensor:
    """Return unique int64 keys, greater for greater logits and then for lower ids."""
    # An IEEE float orders like its bits, once negative ones have all but the sign bit flipped.
    bits_RK = (x_RK + 0.0).contiguous().view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    ordered_RK = torch.where(bits_RK < 0, bits_RK ^ 0x7FFFFFFF, bits_RK).to(torch.int64)
    return (ordered_RK << 32) | (_LOW_WORD - token_ids_RK)
