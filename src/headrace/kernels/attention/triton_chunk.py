"""The Triton kernel of paged prefill: one program for a tile of query rows and a KV head.

Shape letters:
    R = query heads of a KV head   D = head dimension   S = token slots of a block
    M = query rows of a program: consecutive tokens, the R heads of each together
    K = key tokens of a tile
"""

import triton
import triton.language as tl


@triton.jit
def _fold_tiles(
    q_MD,
    pool_head,
    stride_kv,
    table_row,
    start,
    stop,
    num_tokens,
    position_M,
    out_MD,
    sum_M,
    max_M,
    scale_log2,
    S: tl.constexpr,
    K: tl.constexpr,
    IS_MASKED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Fold the key tiles that begin at start..stop-1 into the rows' online softmax.

    Without IS_MASKED every row sees every key of the tiles, and nothing is compared.
    """
    D: tl.constexpr = q_MD.shape[1]
    PRECISION: tl.constexpr = "ieee" if q_MD.dtype == tl.float32 else "tf32"
    i_K = tl.arange(0, K)
    d_D = tl.arange(0, D)
    for first in tl.range(start, stop, K, num_stages=NUM_STAGES):
        token_K = first + i_K
        is_token_K1 = (token_K < num_tokens)[:, None]
        if K <= S:
            block = tl.load(table_row + first // S).to(tl.int64)
            slot_K = block * S + first % S + i_K
        elif IS_MASKED:
            block_K = tl.load(table_row + token_K // S, mask=token_K < num_tokens, other=0)
            slot_K = block_K.to(tl.int64) * S + i_K % S
        else:
            slot_K = tl.load(table_row + token_K // S).to(tl.int64) * S + i_K % S
        place_KD = pool_head + slot_K[:, None] * D + d_D[None, :]
        if IS_MASKED:
            k_KD = tl.load(place_KD, mask=is_token_K1, other=0.0)
        else:
            k_KD = tl.load(place_KD)
        # Nothing where the pool has the queries' dtype; 8-bit keys are widened.
        k_KD = k_KD.to(q_MD.dtype)
        scores_MK = tl.dot(q_MD, tl.trans(k_KD), input_precision=PRECISION) * scale_log2
        if IS_MASKED:
            is_visible_MK = token_K[None, :] <= position_M[:, None]
            scores_MK = tl.where(is_visible_MK, scores_MK, float("-inf"))
        new_max_M = tl.maximum(max_M, tl.max(scores_MK, axis=1))
        decay_M = tl.exp2(max_M - new_max_M)
        weights_MK = tl.exp2(scores_MK - new_max_M[:, None])
        sum_M = sum_M * decay_M + tl.sum(weights_MK, axis=1)
        if IS_MASKED:
            # Zeros where there is no token: 0 * NaN would be NaN.
            v_KD = tl.load(place_KD + stride_kv, mask=is_token_K1, other=0.0)
        else:
            v_KD = tl.load(place_KD + stride_kv)
        v_KD = v_KD.to(q_MD.dtype)
        weights_MK = weights_MK.to(q_MD.dtype)
        out_MD = tl.dot(weights_MK, v_KD, out_MD * decay_M[:, None], input_precision=PRECISION)
        max_M = new_max_M
    return out_MD, sum_M, max_M


@triton.jit
def prefill_kernel(
    q,
    pool,
    table,
    query_starts,
    seq_lens,
    out,
    k_scales,
    v_scales,
    scale_log2,
    stride_q_t,
    stride_q_h,
    stride_pool_kv,
    stride_pool_g,
    stride_table_b,
    stride_out_t,
    stride_out_h,
    R: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Attend M rows, ``M // R`` tokens with the R query heads of KV head g, of sequence b."""
    TOKENS: tl.constexpr = M // R
    # A chunk's last tokens see most keys: begun first, they do not finish last.
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * TOKENS
    g = tl.program_id(1)
    b = tl.program_id(2)
    first_row = tl.load(query_starts + b)
    num_queries = tl.load(query_starts + b + 1) - first_row
    if first_query >= num_queries:
        return
    num_tokens = tl.load(seq_lens + b)
    num_before = num_tokens - num_queries
    m_M = tl.arange(0, M)
    d_D = tl.arange(0, D)
    query_M = first_query + m_M // R
    is_row_M1 = ((m_M < TOKENS * R) & (query_M < num_queries))[:, None]
    h_M = g * R + m_M % R
    row_M = (first_row + query_M).to(tl.int64)
    q_MD = tl.load(
        q + row_M[:, None] * stride_q_t + h_M[:, None] * stride_q_h + d_D[None, :],
        mask=is_row_M1,
        other=0.0,
    )
    # Rows of padding see what the last token sees, so that their maxima are finite.
    position_M = num_before + tl.minimum(query_M, num_queries - 1)
    out_MD = tl.zeros([M, D], tl.float32)
    sum_M = tl.zeros([M], tl.float32)
    max_M = tl.full([M], float("-inf"), tl.float32)
    scale = scale_log2
    if HAS_SCALES:
        scale *= tl.load(k_scales + g)
    pool_head = pool + g.to(tl.int64) * stride_pool_g
    table_row = table + b.to(tl.int64) * stride_table_b
    # Up to here all rows see whole tiles.
    seen_by_all = (num_before + first_query + 1) // K * K
    stop = num_before + tl.minimum(first_query + TOKENS, num_queries)
    out_MD, sum_M, max_M = _fold_tiles(
        q_MD,
        pool_head,
        stride_pool_kv,
        table_row,
        0,
        seen_by_all,
        num_tokens,
        position_M,
        out_MD,
        sum_M,
        max_M,
        scale,
        S,
        K,
        False,
        NUM_STAGES,
    )
    out_MD, sum_M, max_M = _fold_tiles(
        q_MD,
        pool_head,
        stride_pool_kv,
        table_row,
        seen_by_all,
        stop,
        num_tokens,
        position_M,
        out_MD,
        sum_M,
        max_M,
        scale,
        S,
        K,
        True,
        NUM_STAGES,
    )
    if HAS_SCALES:
        out_MD *= tl.load(v_scales + g)
    tl.store(
        out + row_M[:, None] * stride_out_t + h_M[:, None] * stride_out_h + d_D[None, :],
        (out_MD / sum_M[:, None]).to(out.dtype.element_ty),
        mask=is_row_M1,
    )
