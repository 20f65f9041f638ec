"""Fourth pass of device sampling: of a filtered row's candidates, keep what its filters leave.

Masses are sums of integers, weights in units of 2**-44, so that neither the order of the list nor
the width of the machine can change them. Few candidates are ranked all against all; many are
cut by bisection of their keys.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton_numeric import unique_key
from headrace.kernels.sampling.triton_row import exact_scores, exact_weights, finish, winner_of

_NUM_WORDS = tl.constexpr(settings.NUM_WORDS)
_TOP_K = tl.constexpr(settings.TOP_K)
_TOP_P = tl.constexpr(settings.TOP_P)
_NUM_ROW_WORDS = tl.constexpr(ws.NUM_ROW_WORDS)
_STATE = tl.constexpr(ws.STATE)
_NUM_FOUND = tl.constexpr(ws.NUM_FOUND)
_MAY_BE_SHORT = tl.constexpr(ws.MAY_BE_SHORT)
_ROW_BEST = tl.constexpr(ws.ROW_BEST)
_ROW_LOG_SUM = tl.constexpr(ws.ROW_LOG_SUM)
_ROW_MASS = tl.constexpr(ws.ROW_MASS)
_DONE = tl.constexpr(ws.DONE)
_SELECT = tl.constexpr(ws.SELECT)
_WHOLE_ROW = tl.constexpr(ws.WHOLE_ROW)
_LOWEST = tl.constexpr(-3.4e38)
_UNIT = tl.constexpr(float(1 << 44))
_NO_KEY = tl.constexpr(-(1 << 62))


@triton.jit
def _candidates(ids_row, x_row, places, num_found, best, floats):
    """Return ids, weights, unique keys and integer masses of the candidates at ``places``."""
    is_found = places < num_found
    ids = tl.load(ids_row + places, mask=is_found, other=0)
    x = tl.load(x_row + places, mask=is_found, other=_LOWEST)
    weights = exact_weights(x, best, floats)
    keys = tl.where(is_found, unique_key(x, ids), _NO_KEY)
    units = tl.where(is_found, (weights * _UNIT).to(tl.int64), 0)
    return ids, weights, keys, units


@triton.jit
def _ranked(keys, units, ids_row, x_row, num_found, best, ints, floats, mass, TILE: tl.constexpr):
    """Return which candidates top-k and top-p keep, and the mass they were chosen from."""
    _, _, other_keys, other_units = _candidates(
        ids_row, x_row, tl.arange(0, TILE), num_found, best, floats
    )
    is_before = other_keys[None, :] > keys[:, None]
    top_k = tl.load(ints + _TOP_K)
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    before = tl.sum(tl.where(is_before, other_units[None, :], 0), axis=1)
    is_kept = keys != _NO_KEY
    if top_k > 0:
        is_kept = is_kept & (rank < top_k)
        mass = tl.sum(tl.where(is_kept, units, 0)).to(tl.float64)
    top_p = tl.load(floats + _TOP_P)
    if top_p < 1.0:
        is_kept = is_kept & ((before.to(tl.float64) < top_p * mass) | (rank == 0))
    return is_kept, mass


@triton.jit
def _bisected(keys, units, ints, floats, mass):
    """As ``_ranked``, without comparing all with all."""
    high = tl.max(keys)
    lowest = tl.min(tl.where(keys == _NO_KEY, high, keys))
    top_k = tl.load(ints + _TOP_K)
    cut = lowest
    if top_k > 0:
        low = lowest
        top = high
        while low < top:
            middle = low + ((top - low + 1) >> 1)
            if tl.sum((keys >= middle).to(tl.int32)) >= top_k:
                low = middle
            else:
                top = middle - 1
        cut = low
        mass = tl.sum(tl.where(keys >= cut, units, 0)).to(tl.float64)
    top_p = tl.load(floats + _TOP_P)
    if top_p < 1.0:
        wanted = top_p * mass
        low = cut
        top = high
        while low < top:  # the least key above which there is less than is wanted
            middle = low + ((top - low) >> 1)
            if tl.sum(tl.where(keys > middle, units, 0)).to(tl.float64) < wanted:
                top = middle
            else:
                low = middle + 1
        cut = low
    return keys >= cut, mass


@triton.jit
def _decide(row, logits_row, ints, floats, seen, row_i, row_f, ids_row, x_row, tokens, oks,
            logprobs, vocab_size, num_found, TILE: tl.constexpr,
            IS_RANKED: tl.constexpr):  # fmt: skip
    """Draw the row's token from its candidates, or leave the row to the last pass."""
    best = tl.load(row_f + _ROW_BEST).to(tl.float32)
    ids, weights, keys, units = _candidates(
        ids_row, x_row, tl.arange(0, TILE), num_found, best, floats
    )
    mass = tl.load(row_f + _ROW_MASS) * _UNIT
    if IS_RANKED:
        is_kept, mass = _ranked(
            keys, units, ids_row, x_row, num_found, best, ints, floats, mass, TILE=TILE
        )
    else:
        is_kept, mass = _bisected(keys, units, ints, floats, mass)
    is_short = tl.sum(units).to(tl.float64) < tl.load(floats + _TOP_P) * mass
    if is_short & (tl.load(row_i + _MAY_BE_SHORT) > 0):
        tl.store(row_i + _STATE, _WHOLE_ROW)
    else:
        token = winner_of(exact_scores(weights, ids, is_kept, ints, floats), ids)
        log_sum = tl.load(row_f + _ROW_LOG_SUM)
        finish(token, row, logits_row, log_sum, ints, seen, vocab_size, tokens, oks, logprobs)
        tl.store(row_i + _STATE, _DONE)


@triton.jit
def select_kernel(
    logits,
    row_stride,
    settings_ints,
    settings_floats,
    seen,
    row_ints,
    row_floats,
    found_ids,
    found_x,
    tokens,
    oks,
    logprobs,
    vocab_size,
    SMALL: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_i = row_ints + row * _NUM_ROW_WORDS
    if tl.load(row_i + _STATE) != _SELECT:
        return
    row_f = row_floats + row * _NUM_ROW_WORDS
    ints = settings_ints + row * _NUM_WORDS
    floats = settings_floats + row * _NUM_WORDS
    logits_row = logits + row * row_stride
    ids_row = found_ids + row * CAPACITY
    x_row = found_x + row * CAPACITY
    num_found = tl.load(row_i + _NUM_FOUND)
    if num_found > CAPACITY:
        tl.store(row_i + _STATE, _WHOLE_ROW)
    elif num_found > SMALL:
        _decide(row, logits_row, ints, floats, seen, row_i, row_f, ids_row, x_row, tokens, oks,
                logprobs, vocab_size, num_found, TILE=CAPACITY, IS_RANKED=False)  # fmt: skip
    else:
        _decide(row, logits_row, ints, floats, seen, row_i, row_f, ids_row, x_row, tokens, oks,
                logprobs, vocab_size, num_found, TILE=SMALL, IS_RANKED=True)  # fmt: skip
