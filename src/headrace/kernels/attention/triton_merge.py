"""Merging the parts of a row: the arithmetic, and a kernel that merges after all splits are done.

Shape letters:
    B = rows of the batch   G = KV heads   R = query heads of a KV head   D = head dimension
    X = places for parts, as in ``decode_plan``
    C = parts merged at a time, padded to a power of two     A = those of them loaded together
"""

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def split_size(
    num_tokens,
    BASE_TOKENS: tl.constexpr,
    BASE_SPLITS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Return the tokens of a split, as ``decode_plan.split_tokens``, element by element."""
    size = tl.where(num_tokens > BASE_TOKENS * BASE_SPLITS, 2 * BASE_TOKENS, BASE_TOKENS)
    # Ten doublings reach 33 million tokens with the default settings.
    for _ in tl.static_range(10):
        size = tl.where(num_tokens > size * MAX_SPLITS, 2 * size, size)
    return size


@triton.jit
def merge_parts(
    parts,
    lses,
    first,
    count,
    r_R,
    d_D,
    R: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Merge ``count`` parts (1..C) of one row and KV head, in their order.

    Args:
        parts: Of the row and head, ``[X, R, D]``.
        lses: Likewise, ``[X, R]``.
        first: The first part's place.
        count: How many follow, itself included.
        r_R: Query heads, padded to a power of two.
        d_D: Elements of a head.
        R: Query heads that there are.
        D: Head dimension.
        C: Most parts.
        AT_ONCE: Parts loaded together: as many as the registers hold, because each time waits
            for the memory.

    Returns:
        The merged output ``[R, D]`` and its lse ``[R]``. Rows of padding hold numbers.
    """
    is_head_R = r_R < R
    i_C = tl.arange(0, C)
    max_R = tl.zeros([r_R.shape[0]], tl.float32)
    sum_R = tl.full([r_R.shape[0]], 1.0, tl.float32)
    out_RD = tl.zeros([r_R.shape[0], D], tl.float32)
    for skipped in tl.static_range(0, C, AT_ONCE):
        i_A = skipped + tl.arange(0, AT_ONCE)
        place_AR = (first + i_A)[:, None] * R + r_R[None, :]
        is_part_AR = (i_A < count)[:, None] & is_head_R[None, :]
        # Past the first-level cache: other processors have just written these.
        part_ARD = tl.load(
            parts + place_AR[:, :, None] * D + d_D[None, None, :],
            mask=is_part_AR[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        if skipped == 0:
            # Only now, so that the loads above are under way meanwhile.
            lses_CR = _load_lses(lses, first + i_C, i_C < count, r_R, R)
            # Where there is no head there is no maximum either.
            max_R = tl.where(is_head_R, tl.max(lses_CR, axis=0), 0.0)
            sum_R = tl.sum(tl.exp2(lses_CR - max_R[None, :]), axis=0)
            sum_R = tl.where(is_head_R, sum_R, 1.0)
        lses_AR = _load_lses(lses, first + i_A, i_A < count, r_R, R)
        weights_AR = tl.exp2(lses_AR - max_R[None, :])
        out_RD += tl.sum(part_ARD * weights_AR[:, :, None], axis=0)
    return out_RD / sum_R[:, None], max_R + tl.log2(sum_R)


@triton.jit
def _load_lses(lses, place_C, is_part_C, r_R, R: tl.constexpr):
    return tl.load(
        lses + place_C[:, None] * R + r_R[None, :],
        mask=is_part_C[:, None] & (r_R < R)[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )


@triton.jit
def merge_kernel(
    parts,
    lses,
    seq_lens,
    out,
    stride_parts_b,
    stride_parts_g,
    stride_out_b,
    stride_out_h,
    R: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    BASE_TOKENS: tl.constexpr,
    BASE_SPLITS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Merge the splits of one row and query head; rows of one split are already in ``out``.

    Reads the row's length before it waits.
    """
    let_next_begin(CHAINED)
    b = tl.program_id(0)
    h = tl.program_id(1)
    num_tokens = tl.load(seq_lens + b)
    num_splits = tl.cdiv(num_tokens, split_size(num_tokens, BASE_TOKENS, BASE_SPLITS, MAX_SPLITS))
    wait_for_before(CHAINED)
    if num_splits <= 1:
        return
    head = b.to(tl.int64) * stride_parts_b + (h // R) * stride_parts_g
    i_C = tl.arange(0, C)
    d_D = tl.arange(0, D)
    max_1 = float("-inf")
    sum_1 = 0.0
    out_D = tl.zeros([D], tl.float32)
    for first in tl.range(0, num_splits, C, num_stages=2):
        row_C = head + (first + i_C) * R + h % R
        is_part_C = first + i_C < num_splits
        lse_C = tl.load(lses + row_C, mask=is_part_C, other=float("-inf"))
        part_CD = tl.load(
            parts + row_C[:, None] * D + d_D[None, :], mask=is_part_C[:, None], other=0.0
        )
        new_max_1 = tl.maximum(max_1, tl.max(lse_C, axis=0))
        decay_1 = tl.exp2(max_1 - new_max_1)
        weight_C = tl.exp2(lse_C - new_max_1)
        out_D = out_D * decay_1 + tl.sum(part_CD * weight_C[:, None], axis=0)
        sum_1 = sum_1 * decay_1 + tl.sum(weight_C, axis=0)
        max_1 = new_max_1
    result_D = (out_D / sum_1).to(out.dtype.element_ty)
    tl.store(out + b.to(tl.int64) * stride_out_b + h * stride_out_h + d_D, result_D)
