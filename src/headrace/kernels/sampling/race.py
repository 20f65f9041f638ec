"""The exponential race: of candidates with weights w and Exp(1) noise E, the greatest w / E wins.

It is Gumbel-max with one logarithm less: the winner is i with probability w_i / sum w. Over a
whole vocabulary a fast estimate in fp32 first leaves the few tokens that can win at all; the
exact race among those decides. The estimate's rounding may differ between machines, the winner
cannot: whoever could win is always on the shortlist.

Shape letters in this file:
    R = rows    V = vocabulary    K = candidates
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.sampling.elementary import exp_nonpositive
from headrace.kernels.sampling.noise import exponential_noise, random_bits, to_uniform

# Bound on the relative error of an fp32 estimate, thousandfold: exp and log1p are good to 1e-6.
_SLACK = 1e-3
# Above this the fp32 noise is no longer good to 1e-4, because 1 - u has too few bits left.
_MAX_SURE_NOISE = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceRows:
    """What a race needs of its rows.

    Attributes:
        keys_R: int64 noise keys from ``row_keys``.
        temperature_R: float64, positive.
        min_p_R: float64 in [0, 1].
    """

    keys_R: Tensor
    temperature_R: Tensor
    min_p_R: Tensor


def weights(x_RK: Tensor, best_R1: Tensor, temperature_R: Tensor) -> Tensor:
    """Return exp((x - best) / temperature) in float64: 1 for the best token."""
    distance_RK = x_RK.to(torch.float64) - best_R1.to(torch.float64)
    return exp_nonpositive(distance_RK.div_(temperature_R[:, None]))


def race(weights_RK: Tensor, token_ids_RK: Tensor, *, keep_RK: Tensor, keys_R: Tensor) -> Tensor:
    """Return the winning token of each row, int64 ``[R]``.

    Args:
        weights_RK: float64, positive.
        token_ids_RK: int64 ids of the candidates.
        keep_RK: bool; at least one candidate per row takes part.
        keys_R: int64 noise keys.
    """
    scores_RK = weights_RK / exponential_noise(keys_R, token_ids_RK)
    winner_R1 = torch.where(keep_RK, scores_RK, -1.0).argmax(dim=-1, keepdim=True)
    return token_ids_RK.gather(1, winner_R1)[:, 0]


def race_vocabulary(x_RV: Tensor, rows: RaceRows) -> Tensor:
    """Return the winner among all tokens of at least ``min_p`` times the best one's weight.

    Args:
        x_RV: fp32 logits, finite.
        rows: Keys and settings of the same rows.
    """
    best_R1 = x_RV.amax(dim=-1, keepdim=True)
    shortlist_RK, is_listed_RK = _shortlist(x_RV, best_R1, rows)
    weights_RK = weights(x_RV.gather(1, shortlist_RK), best_R1, rows.temperature_R)
    keep_RK = is_listed_RK & (weights_RK >= rows.min_p_R[:, None])
    return race(weights_RK, shortlist_RK, keep_RK=keep_RK, keys_R=rows.keys_R)


def _shortlist(x_RV: Tensor, best_R1: Tensor, rows: RaceRows) -> tuple[Tensor, Tensor]:
    """Return ids of tokens that may win, lowest ids first, and which of the places are filled."""
    ids_1V = torch.arange(x_RV.shape[1], device=x_RV.device)[None]
    uniform_RV = to_uniform(random_bits(rows.keys_R, ids_1V), torch.float32)
    noise_RV = uniform_RV.clamp_(max=1.0 - 2.0**-24).neg_().log1p_().neg_()
    is_sure_RV = noise_RV <= _MAX_SURE_NOISE
    # Divided in float64: a tiny temperature would be zero in fp32.
    distance_RV = (x_RV - best_R1).to(torch.float64).div_(rows.temperature_R[:, None])
    weights_RV = distance_RV.to(torch.float32).exp_()
    # Never under the true score by more than the slack, since noise is cut at the sure limit.
    scores_RV = weights_RV / noise_RV.clamp_(max=_MAX_SURE_NOISE)
    min_p_R1 = rows.min_p_R[:, None].to(torch.float32)
    is_sure_RV &= weights_RV >= min_p_R1 * (1.0 + _SLACK)
    to_beat_R1 = torch.where(is_sure_RV, scores_RV, 0.0).amax(dim=-1, keepdim=True)
    may_win_RV = scores_RV >= to_beat_R1 * (1.0 - 4 * _SLACK)
    may_win_RV &= weights_RV >= min_p_R1 * (1.0 - _SLACK)
    return _left_packed(may_win_RV)


def _left_packed(is_listed_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the true columns of each row, ascending, padded with 0, and where they are."""
    row_N, column_N = is_listed_RV.nonzero(as_tuple=True)
    num_R = torch.bincount(row_N, minlength=len(is_listed_RV))
    place_N = torch.arange(len(row_N), device=row_N.device) - (num_R.cumsum(0) - num_R)[row_N]
    packed_RK = column_N.new_zeros(len(num_R), int(num_R.max()))
    packed_RK[row_N, place_N] = column_N
    places_K = torch.arange(packed_RK.shape[1], device=row_N.device)
    return packed_RK, places_K < num_R[:, None]
