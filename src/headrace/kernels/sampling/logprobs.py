"""Log-probabilities of drawn tokens and of the best alternatives, from the raw logits.

Raw means the model's own distribution, ``log_softmax(logits)``: bias, penalties, temperature and
filters change which token is drawn, not what is reported about it.

Shape letters in this file:
    B = rows of the batch    V = vocabulary    R = rows that want them    N = alternatives
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.messages import TokenLogprob
from headrace.kernels.sampling.batch import SamplingBatch
from headrace.kernels.sampling.elementary import exp_nonpositive, ln_unit, sum_rows
from headrace.kernels.sampling.order import top_tokens

_GROUP_ELEMENTS = 1 << 15


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledTokens:
    """One token per row.

    Attributes:
        token_ids_B: int64; 0 where ``ok_B`` is False.
        ok_B: bool; False where the row's logits held NaN or an infinity.
        logprobs: One entry per row: None where not asked for or not ``ok``.
    """

    token_ids_B: Tensor
    ok_B: Tensor
    logprobs: tuple[TokenLogprob | None, ...]


def token_logprobs(
    logits_BV: Tensor, token_ids_B: Tensor, *, ok_B: Tensor, batch: SamplingBatch
) -> SampledTokens:
    """Bundle drawn tokens with the log-probabilities that their rows ask for.

    Args:
        logits_BV: Raw fp32 logits, finite.
        token_ids_B: int64 drawn tokens.
        ok_B: Rows whose logits were healthy.
        batch: Settings of the rows.
    """
    logprobs: list[TokenLogprob | None] = [None] * len(batch.rows)
    if len(batch.logprobs_R):
        _fill(logprobs, logits_BV, token_ids_B, batch)
        logprobs = [
            entry if ok else None for entry, ok in zip(logprobs, ok_B.tolist(), strict=True)
        ]
    return SampledTokens(token_ids_B=token_ids_B, ok_B=ok_B, logprobs=tuple(logprobs))


def _fill(
    logprobs: list[TokenLogprob | None],
    logits_BV: Tensor,
    token_ids_B: Tensor,
    batch: SamplingBatch,
) -> None:
    rows_R = batch.logprobs_R
    x_RV = logits_BV[rows_R]
    chosen_R1 = token_ids_B[rows_R, None]
    norm_R1 = log_sum_exp(x_RV)[:, None]
    chosen = (x_RV.gather(1, chosen_R1).to(torch.float64) - norm_R1)[:, 0].tolist()
    top_RN = top_tokens(x_RV, min(max(1, batch.max_top_logprobs), x_RV.shape[1]))
    top = (x_RV.gather(1, top_RN).to(torch.float64) - norm_R1).tolist()
    ids = top_RN.tolist()
    for r, row in enumerate(rows_R.tolist()):
        n = batch.rows[row].params.top_logprobs
        pairs = list(zip(ids[r][:n], top[r][:n], strict=True))
        logprobs[row] = TokenLogprob(int(chosen_R1[r]), chosen[r], pairs)


def log_sum_exp(x_RV: Tensor) -> Tensor:
    """Return ln(sum(exp(x))) of each row in float64, independent of the other rows bit for bit."""
    best_R1 = x_RV.amax(dim=-1, keepdim=True).to(torch.float64)
    # In groups of rows whose temporaries stay in a core's cache.
    groups = x_RV.split(max(1, _GROUP_ELEMENTS // x_RV.shape[1]))
    bests = best_R1.split(len(groups[0]))
    sums = [
        sum_rows(exp_nonpositive(group.to(torch.float64) - best))
        for group, best in zip(groups, bests, strict=True)
    ]
    total_R = torch.cat(sums)
    # The sum is in [1, V]; ln_unit wants (0, 1): ln(sum) = -ln(1 / (2 sum)) - ln 2.
    return best_R1[:, 0] - ln_unit(0.5 / total_R) - 0.6931471805599453
