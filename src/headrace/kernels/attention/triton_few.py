"""Split-KV decode attention for few rows: a program a split, its first tile loaded in advance.

With few rows nothing waits for memory bandwidth but for one thing after another. So each program
has the keys and values of its first tile in registers before the kernel that makes the queries has
ended; only the newest token's, which that kernel writes, are read afterwards.

Shape letters:
    R = query heads of a KV head, padded for the matrix units   D = head dimension
    N = blocks of the pool   S = token slots of a block   K = tokens of a tile
    X = places for parts, as in ``decode_plan``
"""

import triton
import triton.language as tl

from headrace.kernels.attention.triton_merge import split_size
from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def _places(table_row, first, stop, S: tl.constexpr, K: tl.constexpr):
    """Return the slots of a tile's tokens; those past ``stop`` are any."""
    i_K = tl.arange(0, K)
    if K <= S:
        # A split starts at a multiple of K, so a tile lies inside one block.
        block = tl.load(table_row + first // S, mask=first < stop, other=0)
        slot_K = block.to(tl.int64) * S + first % S + i_K
    else:
        block_K = tl.load(table_row + (first + i_K) // S, mask=first + i_K < stop, other=0)
        slot_K = block_K.to(tl.int64) * S + i_K % S
    return slot_K


@triton.jit
def _fold_tile(q_RD, k_KD, v_KD, is_token_K, out_RD, sum_R, max_R, scale_log2):
    """Fold one tile into the online softmax; values are zero where there is no token."""
    PRECISION: tl.constexpr = "ieee" if q_RD.dtype == tl.float32 else "tf32"
    scores_RK = tl.dot(q_RD, tl.trans(k_KD), input_precision=PRECISION) * scale_log2
    scores_RK = tl.where(is_token_K[None, :], scores_RK, float("-inf"))
    new_max_R = tl.maximum(max_R, tl.max(scores_RK, axis=1))
    decay_R = tl.exp2(max_R - new_max_R)
    weights_RK = tl.exp2(scores_RK - new_max_R[:, None])
    sum_R = sum_R * decay_R + tl.sum(weights_RK, axis=1)
    out_RD = tl.dot(
        weights_RK.to(q_RD.dtype), v_KD, out_RD * decay_R[:, None], input_precision=PRECISION
    )
    return out_RD, sum_R, new_max_R


@triton.jit
def few_rows_split_kernel(
    q,
    pool,
    table,
    seq_lens,
    out,
    parts,
    lses,
    k_scales,
    v_scales,
    scale_log2,
    stride_q_b,
    stride_q_h,
    stride_pool_kv,
    stride_pool_g,
    stride_table_b,
    stride_out_b,
    stride_out_h,
    stride_parts_b,
    stride_parts_g,
    R: tl.constexpr,
    R_PAD: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    BASE_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Fold one split of one row and KV head: grid (splits, KV heads, rows).

    Args named ``stride_*`` count elements, those of ``parts`` rows of D elements. Reads lengths,
    block tables and all KV but the newest token's before it waits.
    """
    let_next_begin(CHAINED)
    split = tl.program_id(0)
    g = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    num_tokens = tl.load(seq_lens + row)
    size = split_size(num_tokens, BASE_TOKENS, K, MAX_SPLITS)
    num_splits = tl.cdiv(num_tokens, size)
    start = split * size
    stop = tl.minimum(num_tokens, start + size)
    newest = num_tokens - 1
    i_K = tl.arange(0, K)
    r_R = tl.arange(0, R_PAD)
    d_D = tl.arange(0, D)
    h_R = g * R + r_R
    is_head_R = r_R < R
    pool_head = pool + g.to(tl.int64) * stride_pool_g
    table_row = table + row * stride_table_b
    is_token_K = start + i_K < stop
    is_known_K1 = (is_token_K & (start + i_K < newest))[:, None]
    place_KD = pool_head + _places(table_row, start, stop, S, K)[:, None] * D + d_D[None, :]
    k_KD = tl.load(place_KD, mask=is_known_K1, other=0.0)
    v_KD = tl.load(place_KD + stride_pool_kv, mask=is_known_K1, other=0.0)
    # A row of padding has no block, whatever its table says.
    newest_block = tl.load(table_row + tl.maximum(newest, 0) // S, mask=newest >= 0, other=0)
    newest_D = pool_head + (newest_block.to(tl.int64) * S + tl.maximum(newest, 0) % S) * D + d_D
    is_there_D = d_D < tl.where(newest >= 0, D, 0)
    wait_for_before(CHAINED)
    # A row of padding has one empty split, which writes its zeros.
    if split >= tl.maximum(num_splits, 1):
        return
    is_newest_K1 = (is_token_K & (start + i_K == newest))[:, None]
    q_RD = tl.load(
        q + row * stride_q_b + h_R[:, None] * stride_q_h + d_D[None, :],
        mask=is_head_R[:, None],
        other=0.0,
    )
    newest_k_1D = tl.load(newest_D, mask=is_there_D, other=0.0)[None, :]
    newest_v_1D = tl.load(newest_D + stride_pool_kv, mask=is_there_D, other=0.0)[None, :]
    scale = scale_log2
    if HAS_SCALES:
        scale *= tl.load(k_scales + g)
    k_KD = tl.where(is_newest_K1, newest_k_1D, k_KD).to(q_RD.dtype)
    v_KD = tl.where(is_newest_K1, newest_v_1D, v_KD).to(q_RD.dtype)
    out_RD = tl.zeros([R_PAD, D], tl.float32)
    sum_R = tl.zeros([R_PAD], tl.float32)
    # Finite, so that a row without tokens stays a row of numbers.
    max_R = tl.full([R_PAD], -1e30, tl.float32)
    out_RD, sum_R, max_R = _fold_tile(q_RD, k_KD, v_KD, is_token_K, out_RD, sum_R, max_R, scale)
    for first in tl.range(start + K, stop, K, num_stages=NUM_STAGES):
        is_token_K = first + i_K < stop
        place_KD = pool_head + _places(table_row, first, stop, S, K)[:, None] * D + d_D[None, :]
        k_KD = tl.load(place_KD, mask=is_token_K[:, None], other=0.0).to(q_RD.dtype)
        v_KD = tl.load(place_KD + stride_pool_kv, mask=is_token_K[:, None], other=0.0).to(
            q_RD.dtype
        )
        out_RD, sum_R, max_R = _fold_tile(q_RD, k_KD, v_KD, is_token_K, out_RD, sum_R, max_R, scale)
    out_RD *= (1.0 / tl.where(sum_R > 0.0, sum_R, 1.0))[:, None]
    if HAS_SCALES:
        out_RD *= tl.load(v_scales + g)
    if num_splits <= 1:
        places = out + row * stride_out_b + h_R[:, None] * stride_out_h + d_D[None, :]
        tl.store(places, out_RD.to(out.dtype.element_ty), mask=is_head_R[:, None])
    else:
        place_R = row * stride_parts_b + g * stride_parts_g + split * R + r_R
        tl.store(parts + place_R[:, None] * D + d_D[None, :], out_RD, mask=is_head_R[:, None])
        tl.store(lses + place_R, max_R + tl.log2(sum_R), mask=is_head_R)
