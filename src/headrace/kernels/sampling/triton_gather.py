"""Third pass of device sampling: filtered rows collect the tokens that reach their threshold.

Places in the list come from an integer counter, so its order may differ from run to run; nothing
that is made of the list depends on its order.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import device_settings as settings
from headrace.kernels.sampling import workspace as ws
from headrace.kernels.sampling.triton_numeric import ordered
from headrace.kernels.sampling.triton_row import adjust

_NUM_WORDS = tl.constexpr(settings.NUM_WORDS)
_NUM_ROW_WORDS = tl.constexpr(ws.NUM_ROW_WORDS)
_STATE = tl.constexpr(ws.STATE)
_CUT_KEY = tl.constexpr(ws.CUT_KEY)
_NUM_FOUND = tl.constexpr(ws.NUM_FOUND)
_SELECT = tl.constexpr(ws.SELECT)
_LOWEST = tl.constexpr(-3.4e38)


@triton.jit
def gather_kernel(
    logits,
    row_stride,
    settings_ints,
    settings_floats,
    seen,
    bias_tokens,
    bias_values,
    sub_max,
    row_ints,
    found_ids,
    found_x,
    vocab_size,
    num_chunks,
    CHUNK: tl.constexpr,
    SUB: tl.constexpr,
    MAX_BIAS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    row_i = row_ints + row * _NUM_ROW_WORDS
    if tl.load(row_i + _STATE) != _SELECT:
        return
    SUBS: tl.constexpr = CHUNK // SUB
    cut = tl.load(row_i + _CUT_KEY)
    subs = tl.arange(0, SUBS)
    maxima = tl.load(sub_max + (row * num_chunks + chunk) * SUBS + subs)
    is_active = ordered(tl.maximum(maxima, _LOWEST)) >= cut
    if tl.max(is_active.to(tl.int32)) > 0:
        ints = settings_ints + row * _NUM_WORDS
        floats = settings_floats + row * _NUM_WORDS
        first_id = chunk * CHUNK
        ids = first_id + subs[:, None] * SUB + tl.arange(0, SUB)[None, :]
        is_token = (ids < vocab_size) & is_active[:, None]
        x = tl.load(logits + row * row_stride + ids, mask=is_token, other=0.0).to(tl.float32)
        bias_row = row * MAX_BIAS
        x = adjust(x, ids, is_token, ints, floats, seen, bias_tokens + bias_row,
                   bias_values + bias_row, first_id, first_id + CHUNK, vocab_size,
                   MAX_BIAS=MAX_BIAS)  # fmt: skip
        is_found = tl.reshape(is_token & (ordered(x) >= cut), (CHUNK,))
        places = tl.cumsum(is_found.to(tl.int32), axis=0) - 1
        base = tl.atomic_add(row_i + _NUM_FOUND, tl.sum(is_found.to(tl.int32)))
        places = base + places
        is_stored = is_found & (places < CAPACITY)
        tl.store(found_ids + row * CAPACITY + places, tl.reshape(ids, (CHUNK,)), mask=is_stored)
        tl.store(found_x + row * CAPACITY + places, tl.reshape(x, (CHUNK,)), mask=is_stored)
