"""The most likely tokens of rows whose clients want to see them, on the device.

Kept out of the sampling graph: few rows ask, and only their logits need this.

Shape letters in this file:
    R = rows that want alternatives    V = vocabulary    N = alternatives
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sampling.order import unique_keys

_LOW_WORD = 0xFFFFFFFF


def device_top_logprobs(logits_RV: Tensor, *, num_top: int) -> tuple[Tensor, Tensor]:
    """Return the best tokens of each row and their log-probabilities in the raw logits.

    Args:
        logits_RV: fp32 or bf16 logits as the model gave them, of rows that are ``ok``.
        num_top: Alternatives, at most V.

    Returns:
        int64 ids ``[R, N]``, best first, equal logits by id upwards; fp32 log-probabilities.

    Cost:
        A selection among int64 keys, 12 bytes per logit written and read. No host sync.
    """
    x_RV = logits_RV.to(torch.float32)
    keys_RV = unique_keys(x_RV, torch.arange(x_RV.shape[1], device=x_RV.device))
    ids_RN = _LOW_WORD - (torch.topk(keys_RV, num_top, dim=-1).values & _LOW_WORD)
    norm_R1 = torch.logsumexp(x_RV.to(torch.float64), dim=-1, keepdim=True)
    return ids_RN, (x_RV.gather(1, ids_RN) - norm_R1).to(torch.float32)
