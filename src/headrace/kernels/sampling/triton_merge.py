"""Second pass of device sampling: a row's chunks become one answer, or a plan to find it.

Greedy and plain rows end here. For a filtered row a threshold is chosen such that all tokens that
may be drawn reach it and that few others do.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton_numeric import exp_nonpositive, ln_unit, ordered
from headrace.kernels.sampling.triton_row import (
    exact_scores,
    exact_weights,
    fast_weights,
    finish,
)

_NUM_WORDS = tl.constexpr(settings.NUM_WORDS)
_KIND = tl.constexpr(settings.KIND)
_TOP_K = tl.constexpr(settings.TOP_K)
_TEMPERATURE = tl.constexpr(settings.TEMPERATURE)
_TOP_P = tl.constexpr(settings.TOP_P)
_LOG_MIN_P = tl.constexpr(settings.LOG_MIN_P)
_PADDING = tl.constexpr(int(settings.RowKind.PADDING))
_GREEDY = tl.constexpr(int(settings.RowKind.GREEDY))
_PLAIN = tl.constexpr(int(settings.RowKind.PLAIN))
_RAW_MAX = tl.constexpr(ws.RAW_MAX)
_RAW_SUM = tl.constexpr(ws.RAW_SUM)
_BEST = tl.constexpr(ws.BEST)
_MASS = tl.constexpr(ws.MASS)
_FIRST_X = tl.constexpr(ws.FIRST_X)
_SECOND_X = tl.constexpr(ws.SECOND_X)
_BEST_ID = tl.constexpr(ws.BEST_ID)
_FIRST_ID = tl.constexpr(ws.FIRST_ID)
_SECOND_ID = tl.constexpr(ws.SECOND_ID)
_NUM_ROW_WORDS = tl.constexpr(ws.NUM_ROW_WORDS)
_STATE = tl.constexpr(ws.STATE)
_CUT_KEY = tl.constexpr(ws.CUT_KEY)
_NUM_FOUND = tl.constexpr(ws.NUM_FOUND)
_MAY_BE_SHORT = tl.constexpr(ws.MAY_BE_SHORT)
_ROW_BEST = tl.constexpr(ws.ROW_BEST)
_ROW_LOG_SUM = tl.constexpr(ws.ROW_LOG_SUM)
_ROW_MASS = tl.constexpr(ws.ROW_MASS)
_DONE = tl.constexpr(ws.DONE)
_SELECT = tl.constexpr(ws.SELECT)
_WHOLE_ROW = tl.constexpr(ws.WHOLE_ROW)
_LOWEST = tl.constexpr(-3.4e38)
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _plain_winner(best, chunks_f, chunks_i, plane, is_chunk, ints, floats):
    """Race the chunks' finalists exactly."""
    first = tl.load(chunks_i + _FIRST_ID * plane, mask=is_chunk, other=0)
    second = tl.load(chunks_i + _SECOND_ID * plane, mask=is_chunk, other=0)
    first_x = tl.load(chunks_f + _FIRST_X * plane, mask=is_chunk, other=_LOWEST)
    second_x = tl.load(chunks_f + _SECOND_X * plane, mask=is_chunk, other=_LOWEST)
    scores_1 = exact_scores(exact_weights(first_x, best, floats), first, is_chunk, ints, floats)
    scores_2 = exact_scores(exact_weights(second_x, best, floats), second, is_chunk, ints, floats)
    most = tl.maximum(tl.max(scores_1), tl.max(scores_2))
    id_1 = tl.min(tl.where(scores_1 == most, first, _NO_ID))
    id_2 = tl.min(tl.where(scores_2 == most, second, _NO_ID))
    return tl.minimum(id_1, id_2)


@triton.jit
def _min_p_key(best, floats):
    """Return the int64 key that every token of at least min_p times the best weight reaches.

    It lies a little low, for rounding; whoever is drawn is tested exactly.
    """
    drop = tl.load(floats + _TEMPERATURE) * tl.load(floats + _LOG_MIN_P)
    edge = tl.maximum(best.to(tl.float64) + drop * (1.0 + 1e-9), _LOWEST)
    return ordered(edge.to(tl.float32)).to(tl.int64) - 2


@triton.jit
def _threshold(maxima, is_sub, best, need_count, need_mass, floats):
    """Return the greatest int64 key that enough sub-block maxima reach, by number or by mass."""
    keys = ordered(maxima).to(tl.int64)
    weights = fast_weights(maxima, best, floats)
    high = ordered(best).to(tl.int64)
    low = tl.min(tl.where(is_sub, keys, high))
    while low < high:
        middle = (low + high + 1) >> 1
        is_in = is_sub & (keys >= middle)
        count = tl.sum(is_in.to(tl.int32))
        mass = tl.sum(tl.where(is_in, weights, 0.0))
        if (count >= need_count) | (mass >= need_mass):
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _plan(best, mass, maxima, is_sub, ints, floats, row_i, NUM_SUBS, WIDE):
    """Choose the threshold of a filtered row and what comes next."""
    top_k = tl.load(ints + _TOP_K)
    top_p = tl.load(floats + _TOP_P)
    min_p_key = _min_p_key(best, floats)
    cut = min_p_key
    state = _SELECT
    may_be_short = 0
    if top_k > NUM_SUBS:
        state = _WHOLE_ROW
    elif top_k > 0:
        cut = _threshold(maxima, is_sub, best, top_k, float("inf"), floats)
    elif top_p < 1.0:
        # The margin covers the rounding of two fp32 sums.
        need_mass = (top_p * mass * (1.0 + 1e-5)).to(tl.float32)
        cut = _threshold(maxima, is_sub, best, WIDE, need_mass, floats)
        if cut > min_p_key:
            may_be_short = 1
        cut = tl.maximum(cut, min_p_key)
    tl.store(row_i + _STATE, state)
    tl.store(row_i + _CUT_KEY, cut.to(tl.int32))
    tl.store(row_i + _NUM_FOUND, 0)
    tl.store(row_i + _MAY_BE_SHORT, may_be_short)


@triton.jit
def merge_kernel(
    logits,
    row_stride,
    settings_ints,
    settings_floats,
    seen,
    chunk_floats,
    chunk_ints,
    sub_max,
    row_ints,
    row_floats,
    tokens,
    oks,
    logprobs,
    vocab_size,
    capacity,
    num_chunks,
    num_subs,
    wide,
    CHUNK_TILE: tl.constexpr,
    SUB_TILE: tl.constexpr,
    SUBS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    ints = settings_ints + row * _NUM_WORDS
    floats = settings_floats + row * _NUM_WORDS
    row_i = row_ints + row * _NUM_ROW_WORDS
    row_f = row_floats + row * _NUM_ROW_WORDS
    kind = tl.load(ints + _KIND)
    tl.store(row_i + _STATE, _DONE)
    tl.store(tokens + row, 0)
    tl.store(logprobs + row, 0.0)
    if kind == _PADDING:
        tl.store(oks + row, True)
        return
    chunks = tl.arange(0, CHUNK_TILE)
    is_chunk = chunks < num_chunks
    plane = capacity * num_chunks
    chunks_f = chunk_floats + row * num_chunks + chunks
    chunks_i = chunk_ints + row * num_chunks + chunks
    raw_sum = tl.load(chunks_f + _RAW_SUM * plane, mask=is_chunk, other=0.0)
    is_ok = tl.max(raw_sum) < float("inf")
    tl.store(oks + row, is_ok)
    if is_ok:
        raw_max = tl.load(chunks_f + _RAW_MAX * plane, mask=is_chunk, other=_LOWEST)
        highest = tl.max(raw_max).to(tl.float64)
        total = tl.sum(raw_sum.to(tl.float64) * exp_nonpositive(raw_max.to(tl.float64) - highest))
        # The sum is in [1, V]; ln_unit wants (0, 1).
        log_sum = highest - ln_unit(0.5 / total) - 0.6931471805599453
        bests = tl.load(chunks_f + _BEST * plane, mask=is_chunk, other=_LOWEST)
        best = tl.max(bests)
        logits_row = logits + row * row_stride
        if kind == _GREEDY:
            ids = tl.load(chunks_i + _BEST_ID * plane, mask=is_chunk, other=_NO_ID)
            token = tl.min(tl.where(bests == best, ids, _NO_ID))
            finish(token, row, logits_row, log_sum, ints, seen, vocab_size, tokens, oks, logprobs)
        elif kind == _PLAIN:
            token = _plain_winner(best, chunks_f, chunks_i, plane, is_chunk, ints, floats)
            finish(token, row, logits_row, log_sum, ints, seen, vocab_size, tokens, oks, logprobs)
        else:
            masses = tl.load(chunks_f + _MASS * plane, mask=is_chunk, other=0.0)
            mass = tl.sum(masses.to(tl.float64) * exact_weights(bests, best, floats))
            tl.store(row_f + _ROW_BEST, best.to(tl.float64))
            tl.store(row_f + _ROW_LOG_SUM, log_sum)
            tl.store(row_f + _ROW_MASS, mass)
            subs = tl.arange(0, SUB_TILE)
            is_sub = subs < num_subs
            place = sub_max + row * num_chunks * SUBS + subs
            maxima = tl.load(place, mask=is_sub, other=_LOWEST)
            _plan(best, mass, maxima, is_sub, ints, floats, row_i, num_subs, wide)
