"""Split-KV decode attention over a paged pool: folds splits, which another kernel merges.

A fixed number of programs share the batch's **items**, one per split and KV head. Which program
gets an item does not matter for its result.

Shape letters:
    B = rows of the batch, padded to a power of two     G = KV heads
    R = query heads of a KV head, padded for the matrix units         D = head dimension
    N = blocks of the pool   S = token slots of a block   K = tokens of a tile
    X = places for parts, as in ``decode_plan``
"""

import triton
import triton.language as tl

from headrace.kernels.attention.triton_merge import split_size
from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def _fold_split(
    q_RD,
    pool_head,
    stride_kv,
    table_row,
    start,
    stop,
    scale_log2,
    S: tl.constexpr,
    K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Attend to tokens start..stop-1 of one row and KV head.

    Returns:
        The weighted sum of values ``[R, D]``, the sum of weights and the base-2 maximum ``[R]``.
    """
    R: tl.constexpr = q_RD.shape[0]
    D: tl.constexpr = q_RD.shape[1]
    PRECISION: tl.constexpr = "ieee" if q_RD.dtype == tl.float32 else "tf32"
    i_K = tl.arange(0, K)
    d_D = tl.arange(0, D)
    out_RD = tl.zeros([R, D], tl.float32)
    sum_R = tl.zeros([R], tl.float32)
    max_R = tl.full([R], float("-inf"), tl.float32)
    for first in tl.range(start, stop, K, num_stages=NUM_STAGES):
        is_token_K = first + i_K < stop
        if K <= S:
            # A split starts at a multiple of K, so a tile lies inside one block.
            block = tl.load(table_row + first // S).to(tl.int64)
            slot_K = block * S + first % S + i_K
        else:
            block_K = tl.load(table_row + (first + i_K) // S, mask=is_token_K, other=0)
            slot_K = block_K.to(tl.int64) * S + i_K % S
        place_KD = pool_head + slot_K[:, None] * D + d_D[None, :]
        k_KD = tl.load(place_KD, mask=is_token_K[:, None], other=0.0).to(q_RD.dtype)
        scores_RK = tl.dot(q_RD, tl.trans(k_KD), input_precision=PRECISION) * scale_log2
        scores_RK = tl.where(is_token_K[None, :], scores_RK, float("-inf"))
        new_max_R = tl.maximum(max_R, tl.max(scores_RK, axis=1))
        decay_R = tl.exp2(max_R - new_max_R)
        weights_RK = tl.exp2(scores_RK - new_max_R[:, None])
        sum_R = sum_R * decay_R + tl.sum(weights_RK, axis=1)
        # Zeros where there is no token: 0 * NaN would be NaN.
        v_KD = tl.load(place_KD + stride_kv, mask=is_token_K[:, None], other=0.0).to(q_RD.dtype)
        out_RD = tl.dot(
            weights_RK.to(q_RD.dtype),
            v_KD,
            out_RD * decay_R[:, None],
            input_precision=PRECISION,
        )
        max_R = new_max_R
    return out_RD, sum_R, max_R


@triton.jit
def _find_item(item, end_B, num_rows, G: tl.constexpr):
    """Return an item's row, KV head and split; any valid row for an item that there is not."""
    is_before_B = end_B <= item // G
    b = tl.minimum(tl.sum(is_before_B.to(tl.int32), axis=0), num_rows - 1)
    split = item // G - tl.max(tl.where(is_before_B, end_B, 0), axis=0)
    return b, item % G, split


@triton.jit(do_not_specialize=["num_rows"])
def split_kernel(
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
    num_rows,
    stride_q_b,
    stride_q_h,
    stride_pool_kv,
    stride_pool_g,
    stride_table_b,
    stride_out_b,
    stride_out_h,
    stride_parts_b,
    stride_parts_g,
    G: tl.constexpr,
    R: tl.constexpr,
    R_PAD: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    B_PAD: tl.constexpr,
    K: tl.constexpr,
    BASE_TOKENS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Fold every item that falls to this program; ``triton_decode`` says what it all means.

    Args named ``stride_*`` count elements, those of ``parts`` rows of D elements. Reads the rows'
    lengths before it waits.
    """
    let_next_begin(CHAINED)
    b_B = tl.arange(0, B_PAD)
    num_tokens_B = tl.load(seq_lens + b_B, mask=b_B < num_rows, other=0)
    split_B = split_size(num_tokens_B, BASE_TOKENS, K, MAX_SPLITS)
    # A padding row has one empty split, which writes its zeros.
    num_splits_B = tl.where(b_B < num_rows, tl.maximum(tl.cdiv(num_tokens_B, split_B), 1), 0)
    end_B = tl.cumsum(num_splits_B, axis=0)
    num_items = tl.sum(num_splits_B, axis=0) * G
    r_R = tl.arange(0, R_PAD)
    d_D = tl.arange(0, D)
    is_head_R = r_R < R
    item = tl.program_id(0)
    b, g, split = _find_item(item, end_B, num_rows, G)
    wait_for_before(CHAINED)
    while item < num_items:
        num_tokens = tl.load(seq_lens + b)
        size = split_size(num_tokens, BASE_TOKENS, K, MAX_SPLITS)
        num_splits = tl.cdiv(num_tokens, size)
        row = b.to(tl.int64)
        h_R = g * R + r_R
        q_RD = tl.load(
            q + row * stride_q_b + h_R[:, None] * stride_q_h + d_D[None, :],
            mask=is_head_R[:, None],
            other=0.0,
        )
        scale = scale_log2
        if HAS_SCALES:
            scale *= tl.load(k_scales + g)
        out_RD, sum_R, max_R = _fold_split(
            q_RD,
            pool + g.to(tl.int64) * stride_pool_g,
            stride_pool_kv,
            table + row * stride_table_b,
            split * size,
            tl.minimum(num_tokens, split * size + size),
            scale,
            S,
            K,
            NUM_STAGES,
        )
        out_RD *= (1.0 / tl.where(sum_R > 0.0, sum_R, 1.0))[:, None]
        if HAS_SCALES:
            out_RD *= tl.load(v_scales + g)
        out_RD_places = out + row * stride_out_b + h_R[:, None] * stride_out_h + d_D[None, :]
        if num_splits <= 1:
            tl.store(out_RD_places, out_RD.to(out.dtype.element_ty), mask=is_head_R[:, None])
        else:
            first_part = row * stride_parts_b + g * stride_parts_g
            row_parts = parts + first_part * D
            row_lses = lses + first_part
            place_R = split * R + r_R
            tl.store(
                row_parts + place_R[:, None] * D + d_D[None, :], out_RD, mask=is_head_R[:, None]
            )
            tl.store(row_lses + place_R, max_R + tl.log2(sum_R), mask=is_head_R)
        item += tl.num_programs(0)
        b, g, split = _find_item(item, end_B, num_rows, G)
