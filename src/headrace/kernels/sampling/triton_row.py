"""What the kernels of device sampling share about a row: its adjusted logits and its end.

``ints`` and ``floats`` are the row's settings words, seen as int64 and as float64.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling.triton_numeric import (
    exact_noise,
    exp_nonpositive,
    random_bits,
    row_key,
)

_POSITION = tl.constexpr(settings.POSITION)
_SEED = tl.constexpr(settings.SEED)
_SLOT = tl.constexpr(settings.SLOT)
_NUM_BIAS = tl.constexpr(settings.NUM_BIAS)
_SCALE = tl.constexpr(settings.SCALE)
_TEMPERATURE = tl.constexpr(settings.TEMPERATURE)
_MIN_P = tl.constexpr(settings.MIN_P)
_PRESENCE = tl.constexpr(settings.PRESENCE)
_FREQUENCY = tl.constexpr(settings.FREQUENCY)
_REPETITION = tl.constexpr(settings.REPETITION)
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def is_adjusted(ints):
    """Whether bias or penalties change the row's logits."""
    return (tl.load(ints + _SLOT) >= 0) | (tl.load(ints + _NUM_BIAS) > 0)


@triton.jit
def adjust(x, ids, is_token, ints, floats, seen, bias_tokens, bias_values, first, last, vocab_size,
           MAX_BIAS: tl.constexpr):  # fmt: skip
    """Apply bias, then penalties, to fp32 logits of tokens in [first, last): as on the CPU.

    ``bias_tokens`` and ``bias_values`` point to the row's own list, ascending by token.
    """
    num_bias = tl.load(ints + _NUM_BIAS)
    if num_bias > 0:
        places = tl.arange(0, MAX_BIAS)
        tokens = tl.load(bias_tokens + places, mask=places < num_bias, other=_NO_ID)
        begin = tl.sum((tokens < first).to(tl.int32))
        end = tl.sum((tokens < last).to(tl.int32))
        for place in range(begin, end):
            token = tl.load(bias_tokens + place)
            x = tl.where(ids == token, x + tl.load(bias_values + place), x)
    slot = tl.load(ints + _SLOT)
    if slot >= 0:
        words = tl.load(seen + slot * vocab_size + ids, mask=is_token, other=0).to(tl.int32)
        count = words & 0x7FFF
        repetition = tl.load(floats + _REPETITION).to(tl.float32)
        frequency = tl.load(floats + _FREQUENCY).to(tl.float32)
        presence = tl.load(floats + _PRESENCE).to(tl.float32)
        scaled = tl.where(x > 0.0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
        x = tl.where(words != 0, scaled, x)
        x = x - frequency * count.to(tl.float32)
        x = x - tl.where(count > 0, presence, 0.0)
    return x


@triton.jit
def noise_key(ints):
    """Return the key of the row's noise at its position."""
    return row_key(tl.load(ints + _SEED), tl.load(ints + _POSITION))


@triton.jit
def fast_weights(x, best, floats):
    """Estimate ``exact_weights`` in fp32; at least 2**-150, also where x is -inf."""
    # 1e8 times the greatest scale is still finite in fp32.
    distance = tl.maximum(x - best, -1e8)
    return tl.exp2(tl.maximum(distance * tl.load(floats + _SCALE).to(tl.float32), -150.0))


@triton.jit
def exact_weights(x, best, floats):
    """Return exp((x - best) / temperature) in float64 of fp32 logits at most ``best``."""
    distance = x.to(tl.float64) - best.to(tl.float64)
    return exp_nonpositive(distance / tl.load(floats + _TEMPERATURE))


@triton.jit
def exact_scores(weights, ids, is_kept, ints, floats):
    """Return race scores in float64; -1 where not kept or under the row's min-p."""
    is_kept = is_kept & (weights >= tl.load(floats + _MIN_P))
    scores = weights / exact_noise(random_bits(noise_key(ints), ids))
    return tl.where(is_kept, scores, -1.0)


@triton.jit
def winner_of(scores, ids):
    """Return the id with the greatest score, the lowest of equals."""
    return tl.min(tl.where(scores == tl.max(scores), ids, _NO_ID))


@triton.jit
def finish(token, row, logits_row, log_sum, ints, seen, vocab_size, tokens, oks, logprobs):
    """Write a drawn token, count it, and advance the row's position."""
    tl.store(tokens + row, token)
    tl.store(oks + row, True)
    tl.store(logprobs + row, (tl.load(logits_row + token).to(tl.float64) - log_sum))
    tl.store(ints + _POSITION, tl.load(ints + _POSITION) + 1)
    slot = tl.load(ints + _SLOT)
    if slot >= 0:
        place = seen + slot * vocab_size + token
        word = tl.load(place).to(tl.int32)
        step = tl.where((word & 0x7FFF) < 0x7FFF, 1, 0)
        tl.store(place, (word + step).to(tl.int16))
