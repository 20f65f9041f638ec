"""Last pass of device sampling: rows that too many tokens could win are searched whole.

One program reads a row many times: four thresholds at once narrow the key at which top-k and
top-p cut, one reading finds the last of equal logits that stays, and one draws. Rows come here
whose top-k exceeds their sub-blocks, or whose top-p or min-p leaves more than the list holds.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton_numeric import (
    fast_noise,
    ordered,
    random_bits,
    unordered,
)
from headrace.kernels.sampling.triton_row import (
    adjust,
    exact_scores,
    exact_weights,
    fast_weights,
    finish,
    noise_key,
    winner_of,
)

_NUM_WORDS = tl.constexpr(settings.NUM_WORDS)
_TOP_K = tl.constexpr(settings.TOP_K)
_TOP_P = tl.constexpr(settings.TOP_P)
_MIN_P = tl.constexpr(settings.MIN_P)
_NUM_ROW_WORDS = tl.constexpr(ws.NUM_ROW_WORDS)
_STATE = tl.constexpr(ws.STATE)
_ROW_BEST = tl.constexpr(ws.ROW_BEST)
_ROW_LOG_SUM = tl.constexpr(ws.ROW_LOG_SUM)
_ROW_MASS = tl.constexpr(ws.ROW_MASS)
_WHOLE_ROW = tl.constexpr(ws.WHOLE_ROW)
_LOWEST_KEY = tl.constexpr(-(1 << 31))
_WAYS = tl.constexpr(4)
_LOWEST = tl.constexpr(-3.4e38)
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _load(first, logits_row, ints, floats, seen, bias_tokens, bias_values, vocab_size,
          BLOCK: tl.constexpr, MAX_BIAS: tl.constexpr):  # fmt: skip
    """Return ids, which of them are tokens, and adjusted logits from ``first`` on."""
    ids = first + tl.arange(0, BLOCK)
    is_token = ids < vocab_size
    x = tl.load(logits_row + ids, mask=is_token, other=0.0).to(tl.float32)
    x = adjust(x, ids, is_token, ints, floats, seen, bias_tokens, bias_values, first,
               first + BLOCK, vocab_size, MAX_BIAS=MAX_BIAS)  # fmt: skip
    return ids, is_token, x


@triton.jit
def _reaching(keys_W, best, logits_row, ints, floats, seen, bias_tokens, bias_values, vocab_size,
              BLOCK: tl.constexpr, MAX_BIAS: tl.constexpr):  # fmt: skip
    """Return how many tokens reach each of four int64 keys, and their weights' sum (float64)."""
    counts = tl.zeros((_WAYS,), tl.int32)
    masses = tl.zeros((_WAYS,), tl.float64)
    places = tl.arange(0, BLOCK)
    coming = tl.load(logits_row + places, mask=places < vocab_size, other=0.0)
    for first in range(0, vocab_size, BLOCK):
        ids = first + places
        x = coming.to(tl.float32)
        # The next block is under way while this one is counted.
        coming = tl.load(logits_row + ids + BLOCK, mask=ids < vocab_size - BLOCK, other=0.0)
        is_token = ids < vocab_size
        x = adjust(x, ids, is_token, ints, floats, seen, bias_tokens, bias_values, first,
                   first + BLOCK, vocab_size, MAX_BIAS=MAX_BIAS)  # fmt: skip
        weights = fast_weights(x, best, floats)
        keys = tl.where(is_token, ordered(x).to(tl.int64), _LOWEST_KEY - 1)
        is_in = keys[:, None] >= keys_W[None, :]
        counts += tl.sum(is_in.to(tl.int32), axis=0)
        masses += tl.sum(tl.where(is_in, weights[:, None], 0.0), axis=0).to(tl.float64)
    return counts, masses


@triton.jit
def _cut(low, high, need_count, need_mass, best, logits_row, ints, floats, seen, bias_tokens,
         bias_values, vocab_size, BLOCK: tl.constexpr, MAX_BIAS: tl.constexpr):  # fmt: skip
    """Return the greatest key in [low, high] that enough tokens reach, by number or by mass."""
    steps = tl.arange(0, _WAYS).to(tl.int64) + 1
    while low < high:
        width = high - low
        keys = low + (width * steps + (_WAYS - 1)) // _WAYS
        counts, masses = _reaching(keys, best, logits_row, ints, floats, seen, bias_tokens,
                                   bias_values, vocab_size, BLOCK=BLOCK,
                                   MAX_BIAS=MAX_BIAS)  # fmt: skip
        is_enough = (counts >= need_count) | (masses >= need_mass)
        # Keys ascend, so those with enough come first.
        passed = tl.sum(is_enough.to(tl.int64))
        new_high = tl.where(
            passed < _WAYS, low + (width * (passed + 1) + (_WAYS - 1)) // _WAYS - 1, high
        )
        low = low + (width * passed + (_WAYS - 1)) // _WAYS
        high = new_high
    return low


@triton.jit
def _above(cut, best, logits_row, ints, floats, seen, bias_tokens, bias_values, vocab_size,
           BLOCK: tl.constexpr, MAX_BIAS: tl.constexpr):  # fmt: skip
    """Return the number and the mass of the tokens above a key."""
    keys = tl.zeros((_WAYS,), tl.int64) + (cut + 1)
    counts, masses = _reaching(keys, best, logits_row, ints, floats, seen, bias_tokens,
                               bias_values, vocab_size, BLOCK=BLOCK, MAX_BIAS=MAX_BIAS)  # fmt: skip
    return tl.max(counts), tl.max(masses)


@triton.jit
def _limits(best, mass, logits_row, ints, floats, seen, bias_tokens, bias_values, vocab_size,
            BLOCK: tl.constexpr, MAX_BIAS: tl.constexpr):  # fmt: skip
    """Return the key at which top-k and top-p cut, and how many tokens of that key stay."""
    top_k = tl.load(ints + _TOP_K).to(tl.int32)
    top_p = tl.load(floats + _TOP_P)
    high = ordered(best).to(tl.int64)
    cut = tl.full((), _LOWEST_KEY, tl.int64)
    equals = vocab_size
    if top_k > 0:
        cut = _cut(cut, high, top_k, float("inf"), best, logits_row, ints, floats, seen,
                   bias_tokens, bias_values, vocab_size, BLOCK=BLOCK,
                   MAX_BIAS=MAX_BIAS)  # fmt: skip
        count, above = _above(cut, best, logits_row, ints, floats, seen, bias_tokens, bias_values,
                              vocab_size, BLOCK=BLOCK, MAX_BIAS=MAX_BIAS)  # fmt: skip
        equals = top_k - count
        weight = fast_weights(unordered(cut.to(tl.int32)), best, floats)
        mass = above + equals.to(tl.float64) * weight
    if top_p < 1.0:
        wanted = top_p * mass
        cut_p = _cut(cut, high, _NO_ID, wanted, best, logits_row, ints, floats, seen,
                     bias_tokens, bias_values, vocab_size, BLOCK=BLOCK,
                     MAX_BIAS=MAX_BIAS)  # fmt: skip
        _, above = _above(cut_p, best, logits_row, ints, floats, seen, bias_tokens, bias_values,
                          vocab_size, BLOCK=BLOCK, MAX_BIAS=MAX_BIAS)  # fmt: skip
        weight = fast_weights(unordered(cut_p.to(tl.int32)), best, floats).to(tl.float64)
        share = tl.minimum(tl.maximum((wanted - above) / weight, 1.0), vocab_size + 0.0)
        equals_p = tl.ceil(share).to(tl.int32)
        equals = tl.where(cut_p > cut, equals_p, tl.minimum(equals, equals_p))
        cut = cut_p
    return cut, equals


@triton.jit
def search_kernel(
    logits,
    row_stride,
    settings_ints,
    settings_floats,
    seen,
    bias_tokens,
    bias_values,
    row_ints,
    row_floats,
    tokens,
    oks,
    logprobs,
    vocab_size,
    BLOCK: tl.constexpr,
    MAX_BIAS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(row_ints + row * _NUM_ROW_WORDS + _STATE) != _WHOLE_ROW:
        return
    row_f = row_floats + row * _NUM_ROW_WORDS
    ints = settings_ints + row * _NUM_WORDS
    floats = settings_floats + row * _NUM_WORDS
    logits_row = logits + row * row_stride
    bias_tokens += row * MAX_BIAS
    bias_values += row * MAX_BIAS
    best = tl.load(row_f + _ROW_BEST).to(tl.float32)
    mass = tl.load(row_f + _ROW_MASS)
    cut, equals = _limits(best, mass, logits_row, ints, floats, seen, bias_tokens, bias_values,
                          vocab_size, BLOCK=BLOCK, MAX_BIAS=MAX_BIAS)  # fmt: skip

    # Each lane keeps its best estimate; the lanes' winners race exactly.
    key = noise_key(ints)
    # A little low for rounding; the exact race tests min-p exactly.
    least = tl.load(floats + _MIN_P).to(tl.float32) * (1.0 - 1e-5)
    lane_score = tl.full((BLOCK,), -1.0, tl.float32)
    lane_x = tl.full((BLOCK,), _LOWEST, tl.float32)
    lane_id = tl.zeros((BLOCK,), tl.int32)
    num_equal = 0
    for first in range(0, vocab_size, BLOCK):
        ids, is_token, x = _load(first, logits_row, ints, floats, seen, bias_tokens, bias_values,
                                 vocab_size, BLOCK=BLOCK, MAX_BIAS=MAX_BIAS)  # fmt: skip
        keys = ordered(x).to(tl.int64)
        is_equal = is_token & (keys == cut)
        place = num_equal + tl.cumsum(is_equal.to(tl.int32), axis=0)
        num_equal += tl.sum(is_equal.to(tl.int32))
        weights = fast_weights(x, best, floats)
        is_kept = is_token & ((keys > cut) | (is_equal & (place <= equals))) & (weights >= least)
        scores = tl.where(is_kept, weights / fast_noise(random_bits(key, ids)), -1.0)
        is_better = scores > lane_score
        lane_score = tl.where(is_better, scores, lane_score)
        lane_x = tl.where(is_better, x, lane_x)
        lane_id = tl.where(is_better, ids, lane_id)
    weights = exact_weights(lane_x, best, floats)
    token = winner_of(exact_scores(weights, lane_id, lane_score >= 0.0, ints, floats), lane_id)
    log_sum = tl.load(row_f + _ROW_LOG_SUM)
    finish(token, row, logits_row, log_sum, ints, seen, vocab_size, tokens, oks, logprobs)
