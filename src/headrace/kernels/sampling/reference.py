"""Choosing the next token of every row: plain torch, any device.

A token is drawn by an exponential race (``race.py``): each candidate i has weight
w_i = exp((x_i - max x) / temperature) and noise E_i ~ Exp(1) that depends on (seed, position,
token id) only; the greatest w_i / E_i wins, with probability w_i / sum w.

Shape letters in this file:
    B = rows of the batch    V = vocabulary    R = rows of one kind    K = candidates, best first
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sampling.batch import SamplingBatch
from headrace.kernels.sampling.logits import adjust_logits, finite_rows
from headrace.kernels.sampling.logprobs import SampledTokens, token_logprobs
from headrace.kernels.sampling.noise import row_keys
from headrace.kernels.sampling.order import top_tokens
from headrace.kernels.sampling.race import RaceRows, race, race_vocabulary, weights

# Rows are drawn in groups of about this many logits: the passes over them stay in a core's cache
# (measured on two cores: four times faster per row than groups four times as large).
_GROUP_ELEMENTS = 1 << 15


def sample(logits_BV: Tensor, batch: SamplingBatch) -> SampledTokens:
    """Draw one token per row.

    In this order: logit bias; repetition, frequency, presence penalty; temperature; **top-k**
    keeps exactly k tokens (equal logits: lower ids first); **top-p** keeps the shortest prefix of
    those, best first, whose probability *among those* reaches p; **min-p** drops what has less
    than min_p times the probability of the best. The best token is always kept. Temperature 0
    takes the best token after bias and penalties, the lowest id among equals.

    Args:
        logits_BV: fp32 logits as the model gave them. Not modified.
        batch: Settings of the same B rows, on the same device.

    Returns:
        Token ids, health and log-probabilities; see ``SampledTokens``.

    Guarantees:
        * A row's result depends, bit for bit, on its own logits, settings and counts only: not on
          B, its place, its neighbours or the thread count.
        * Log-probabilities are of the raw logits: no bias, penalty, temperature or filter.
        * A row with NaN or infinite logits has ``ok`` False and token 0; other rows are untouched.

    Cost:
        Greedy without options: one argmax and one min-max pass. top-k: noise for k candidates
        only. Plain temperature and min-p: about 25 elementwise passes over ``[R, V]``, in groups
        that fit the cache. top-p without top-k: a sort of the row. Host syncs: a few.
    """
    ok_B = finite_rows(logits_BV)
    if not bool(ok_B.all()):
        logits_BV = torch.where(ok_B[:, None], logits_BV, 0.0)
    token_ids_B = torch.where(ok_B, _choose(logits_BV, batch), 0)
    return token_logprobs(logits_BV, token_ids_B, ok_B=ok_B, batch=batch)


def _choose(logits_BV: Tensor, batch: SamplingBatch) -> Tensor:
    x_BV = adjust_logits(logits_BV, batch)
    token_ids_B = torch.argmax(x_BV, dim=-1)
    if batch.is_plain_greedy:
        return token_ids_B
    keys_B = row_keys(batch.seeds_B, batch.positions_B)
    num_tokens = x_BV.shape[1]
    top_k = min(batch.max_top_k, num_tokens)
    kinds = ((batch.plain_R, 0), (batch.top_k_rows_R, top_k), (batch.sorted_R, num_tokens))
    for rows_R, k in kinds:
        for part_R in rows_R.split(max(1, _GROUP_ELEMENTS // num_tokens)) if len(rows_R) else ():
            rows = RaceRows(
                keys_R=keys_B[part_R],
                temperature_R=batch.temperature_B[part_R],
                min_p_R=batch.min_p_B[part_R],
            )
            x_RV = x_BV[part_R]
            if k:
                limits = (batch.top_k_B[part_R], batch.top_p_B[part_R])
                token_ids_B[part_R] = _race_best(x_RV, rows, k=k, limits=limits)
            else:
                token_ids_B[part_R] = race_vocabulary(x_RV, rows)
    return token_ids_B


def _race_best(x_RV: Tensor, rows: RaceRows, *, k: int, limits: tuple[Tensor, Tensor]) -> Tensor:
    """Race what top-k and top-p (``limits``) leave of each row's best k tokens."""
    candidates_RK = top_tokens(x_RV, k)
    x_RK = x_RV.gather(1, candidates_RK)
    weights_RK = weights(x_RK, x_RK[:, :1], rows.temperature_R)
    keep_RK = _prefix(weights_RK, limits[0], top_p_R=limits[1])
    keep_RK &= weights_RK >= rows.min_p_R[:, None]
    return race(weights_RK, candidates_RK, keep_RK=keep_RK, keys_R=rows.keys_R)


def _prefix(weights_RK: Tensor, top_k_R: Tensor, *, top_p_R: Tensor) -> Tensor:
    """Return bool ``[R, K]``: the candidates, best first, that top-k and then top-p keep."""
    num_candidates = weights_RK.shape[1]
    place_K = torch.arange(num_candidates, device=weights_RK.device)
    limit_R1 = torch.where(top_k_R > 0, top_k_R, num_candidates).clamp(max=num_candidates)[:, None]
    # A running sum goes from left to right, so what stands beyond a row's k cannot touch it.
    mass_RK = weights_RK.cumsum(dim=-1)
    wanted_R1 = mass_RK.gather(1, limit_R1 - 1) * top_p_R[:, None]
    before_RK = mass_RK.roll(1, dims=-1)
    before_RK[:, 0] = 0.0
    is_first_K = place_K == 0
    return (place_K < limit_R1) & ((before_RK < wanted_R1) | is_first_K)
