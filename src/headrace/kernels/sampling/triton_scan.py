"""First pass of device sampling: what every chunk of every row has to tell, in one reading.

The chunk's finiteness, raw maximum and raw sum of exponentials serve health and log-probability;
its best adjusted token serves greedy rows, its two best estimates of the race serve plain ones,
and the maxima of its sub-blocks tell filtered rows where their best tokens can be.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton_numeric import fast_noise, random_bits
from headrace.kernels.sampling.triton_row import adjust, fast_weights, is_adjusted, noise_key

_NUM_WORDS = tl.constexpr(settings.NUM_WORDS)
_KIND = tl.constexpr(settings.KIND)
_TOP_K = tl.constexpr(settings.TOP_K)
_TOP_P = tl.constexpr(settings.TOP_P)
_PADDING = tl.constexpr(int(settings.RowKind.PADDING))
_PLAIN = tl.constexpr(int(settings.RowKind.PLAIN))
_FILTERED = tl.constexpr(int(settings.RowKind.FILTERED))
_RAW_MAX = tl.constexpr(ws.RAW_MAX)
_RAW_SUM = tl.constexpr(ws.RAW_SUM)
_BEST = tl.constexpr(ws.BEST)
_MASS = tl.constexpr(ws.MASS)
_FIRST_X = tl.constexpr(ws.FIRST_X)
_SECOND_X = tl.constexpr(ws.SECOND_X)
_BEST_ID = tl.constexpr(ws.BEST_ID)
_FIRST_ID = tl.constexpr(ws.FIRST_ID)
_SECOND_ID = tl.constexpr(ws.SECOND_ID)
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _race_estimate(x, ids, best, ints, floats, place_f, place_i, plane):
    """Store the two greatest race scores of the chunk, estimated in fp32.

    The winner of the exact race is among them unless two other tokens of the chunk come within
    the estimate's error, some 1e-6, of its score: about once in 1e11 draws.
    """
    weights = fast_weights(x, best, floats)
    scores = weights / fast_noise(random_bits(noise_key(ints), ids))
    scores = tl.where(x > float("-inf"), scores, -1.0)
    first = tl.min(tl.where(scores == tl.max(scores), ids, _NO_ID))
    tl.store(place_i + _FIRST_ID * plane, first)
    tl.store(place_f + _FIRST_X * plane, tl.max(tl.where(ids == first, x, float("-inf"))))
    scores = tl.where(ids == first, -1.0, scores)
    greatest = tl.max(scores)
    second = tl.min(tl.where(scores == greatest, ids, _NO_ID))
    second = tl.where(greatest < 0.0, first, second)  # a chunk of one token
    tl.store(place_i + _SECOND_ID * plane, second)
    tl.store(place_f + _SECOND_X * plane, tl.max(tl.where(ids == second, x, float("-inf"))))


@triton.jit
def scan_kernel(
    logits,
    row_stride,
    settings_ints,
    settings_floats,
    seen,
    bias_tokens,
    bias_values,
    chunk_floats,
    chunk_ints,
    sub_max,
    vocab_size,
    capacity,
    num_chunks,
    CHUNK: tl.constexpr,
    SUB: tl.constexpr,
    MAX_BIAS: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    SUBS: tl.constexpr = CHUNK // SUB
    subs = tl.arange(0, SUBS)
    first_id = chunk * CHUNK
    ids = first_id + subs[:, None] * SUB + tl.arange(0, SUB)[None, :]
    is_token = ids < vocab_size
    # Asked for before the settings are known, so that the two latencies overlap.
    x = tl.load(logits + row * row_stride + ids, mask=is_token, other=0.0).to(tl.float32)
    ints = settings_ints + row * _NUM_WORDS
    floats = settings_floats + row * _NUM_WORDS
    kind = tl.load(ints + _KIND)
    if kind == _PADDING:
        return
    plane = capacity * num_chunks
    place_f = chunk_floats + row * num_chunks + chunk
    place_i = chunk_ints + row * num_chunks + chunk

    is_finite = tl.abs(x) < float("inf")
    x = tl.where(is_token & is_finite, x, tl.where(is_token, 0.0, float("-inf")))
    maxima = tl.max(x, axis=1)
    best = tl.max(maxima)
    tl.store(place_f + _RAW_MAX * plane, best)
    # No exponential exceeds 1, so the sum is infinite exactly where a logit was not finite.
    exponentials = tl.where(is_finite, tl.exp(x - best), float("inf"))
    tl.store(place_f + _RAW_SUM * plane, tl.sum(exponentials))

    if is_adjusted(ints):
        bias_row = row * MAX_BIAS
        x = adjust(x, ids, is_token, ints, floats, seen, bias_tokens + bias_row,
                   bias_values + bias_row, first_id, first_id + CHUNK, vocab_size,
                   MAX_BIAS=MAX_BIAS)  # fmt: skip
        x = tl.where(is_token, x, float("-inf"))
        maxima = tl.max(x, axis=1)
        best = tl.max(maxima)
    tl.store(sub_max + (row * num_chunks + chunk) * SUBS + subs, maxima)
    tl.store(place_f + _BEST * plane, best)
    tl.store(place_i + _BEST_ID * plane, tl.min(tl.where(x == best, ids, _NO_ID)))

    if kind == _PLAIN:
        _race_estimate(x, ids, best, ints, floats, place_f, place_i, plane)
    is_top_p_alone = (tl.load(ints + _TOP_K) == 0) & (tl.load(floats + _TOP_P) < 1.0)
    if (kind == _FILTERED) & is_top_p_alone:
        mass = tl.sum(tl.where(is_token, fast_weights(x, best, floats), 0.0))
        tl.store(place_f + _MASS * plane, mass)
