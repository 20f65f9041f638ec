"""Tokens' experts in Triton, as places: what both routing kernels begin with.

Shape letters: T = tokens of a program   E = experts, both padded to powers of two
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _ordered_keys(logits_TE, experts_E, IS_SHORT: tl.constexpr):
    """Return integers that sort as the logits do, equal ones by falling expert id.

    All of a key is one integer, so that the best is found by one reduction. Short keys hold the
    16 high bits of the logits, which is all there is of bf16.
    """
    logits_TE = tl.where(logits_TE == 0.0, 0.0, logits_TE)  # both zeros are equal
    bits_TE = logits_TE.to(tl.int32, bitcast=True)
    # Negative floats order backwards as integers.
    bits_TE = tl.where(bits_TE < 0, bits_TE ^ 0x7FFFFFFF, bits_TE)
    rest_1E = (0xFFFF - experts_E)[None, :]
    if IS_SHORT:
        keys_TE = (bits_TE & -0x10000) | rest_1E
    else:
        keys_TE = (bits_TE.to(tl.int64) << 16) | rest_1E.to(tl.int64)
    return keys_TE


@triton.jit
def choose_experts(
    logits_TE,
    experts_E,
    E: tl.constexpr,
    K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Return each expert's place among a token's best, K or more when not chosen, and its weight.

    Equal logits go to the lower id; a NaN counts as the lowest. What stands at E and beyond is not
    looked at.
    """
    is_number_TE = (logits_TE == logits_TE) & (experts_E < E)[None, :]
    logits_TE = tl.where(is_number_TE, logits_TE, float("-inf"))
    keys_TE = _ordered_keys(logits_TE, experts_E, IS_SHORT)
    LOWEST: tl.constexpr = -0x80000000 if IS_SHORT else -0x8000000000000000
    keys_TE = tl.where((experts_E < E)[None, :], keys_TE, LOWEST)
    places_TE = tl.full(logits_TE.shape, K, tl.int32)
    for place in tl.static_range(K):
        is_best_TE = keys_TE == tl.max(keys_TE, 1)[:, None]
        places_TE = tl.where(is_best_TE, place, places_TE)
        keys_TE = tl.where(is_best_TE, LOWEST, keys_TE)
    weights_TE = tl.exp(logits_TE - tl.max(logits_TE, 1)[:, None])
    counted_TE = weights_TE
    if RENORMALIZE:
        counted_TE = tl.where(places_TE < K, weights_TE, 0.0)
    return places_TE, weights_TE / tl.sum(counted_TE, 1)[:, None]
