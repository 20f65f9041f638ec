"""Merging the parts of a row when all its splits are done.

Shape letters:
    B = rows of the batch   G = KV heads   R = query heads of a KV head   D = head dimension
    X = places for parts, as in ``decode_plan``
    C = parts merged at a time, a power of two
"""

import triton
import triton.language as tl

from headrace.kernels.chain import let_next_begin, wait_for_before


@triton.jit
def split_size(
    num_tokens, BASE_TOKENS: tl.constexpr, TILE_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr
):
    """Return the tokens of a split, as ``decode_plan.split_tokens``, element by element."""
    tiles = tl.cdiv(num_tokens, MAX_SPLITS * TILE_TOKENS)
    return tl.maximum(tiles * TILE_TOKENS, BASE_TOKENS)


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
    TILE_TOKENS: tl.constexpr,
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
    num_splits = tl.cdiv(num_tokens, split_size(num_tokens, BASE_TOKENS, TILE_TOKENS, MAX_SPLITS))
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
