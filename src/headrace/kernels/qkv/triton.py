"""QK-norm, RoPE and the write into the paged cache in Triton: one launch.

Shape letters:
    T = rows   Q = query heads   G = KV heads   D = head dimension   X = (Q + 2G) * D
    F = D / 2 frequencies   N = blocks of the pool   S = token slots of a block
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.chain import launch, let_next_begin, wait_for_before
from headrace.kernels.rope import RopeTable


@triton.jit
def norm_rope_write_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    pool_ptr,
    q_ptr,
    k_scales,
    v_scales,
    qkv_stride,
    kind_stride,
    head_stride,
    eps,
    NUM_Q: tl.constexpr,
    NUM_KV: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    IS_NARROW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Serve a few heads of one row: grid (rows, groups of HEADS heads).

    A head is held as its two halves, since rotation pairs element i with element i + D/2.
    Reads the norms' weights, positions, slots, cosines and sines before it waits.
    """
    let_next_begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    F: tl.constexpr = D // 2
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    freqs = tl.arange(0, F)
    is_head = (heads < NUM_Q + 2 * NUM_KV)[:, None]
    is_query = (heads < NUM_Q)[:, None]
    is_value = (heads >= NUM_Q + NUM_KV)[:, None]
    dtype = q_ptr.dtype.element_ty
    q_low = tl.load(q_norm_ptr + freqs).to(tl.float32)[None, :]
    q_high = tl.load(q_norm_ptr + F + freqs).to(tl.float32)[None, :]
    k_low = tl.load(k_norm_ptr + freqs).to(tl.float32)[None, :]
    k_high = tl.load(k_norm_ptr + F + freqs).to(tl.float32)[None, :]
    angles = tl.load(positions_ptr + row).to(tl.int64) * F + freqs
    cos = tl.load(cos_ptr + angles).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angles).to(tl.float32)[None, :]
    slot = tl.load(slots_ptr + row).to(tl.int64)
    wait_for_before(CHAINED)
    source = qkv_ptr + row * qkv_stride + heads[:, None] * D + freqs[None, :]
    low_in = tl.load(source, mask=is_head, other=0.0).to(tl.float32)
    high_in = tl.load(source + F, mask=is_head, other=0.0).to(tl.float32)
    squares = tl.sum(low_in * low_in + high_in * high_in, 1) / D
    scale = tl.rsqrt(squares + eps)[:, None]
    # Every product is rounded to the rows' dtype, as the reference does.
    low = (low_in * scale).to(dtype).to(tl.float32) * tl.where(is_query, q_low, k_low)
    high = (high_in * scale).to(dtype).to(tl.float32) * tl.where(is_query, q_high, k_high)
    low = low.to(dtype).to(tl.float32)
    high = high.to(dtype).to(tl.float32)
    turned_low = (low * cos).to(dtype).to(tl.float32) - (high * sin).to(dtype).to(tl.float32)
    turned_high = (high * cos).to(dtype).to(tl.float32) + (low * sin).to(dtype).to(tl.float32)
    out_low = tl.where(is_value, low_in, turned_low.to(dtype).to(tl.float32))
    out_high = tl.where(is_value, high_in, turned_high.to(dtype).to(tl.float32))
    queries = q_ptr + (row * NUM_Q + heads[:, None]) * D + freqs[None, :]
    tl.store(queries, out_low.to(dtype), mask=is_query)
    tl.store(queries + F, out_high.to(dtype), mask=is_query)
    # No head is written for a row without a slot.
    first_written = tl.where(slot >= 0, NUM_Q, NUM_Q + 2 * NUM_KV)
    is_written = is_head & (heads >= first_written)[:, None]
    kv_head = (heads - NUM_Q) % NUM_KV
    kind = (heads - NUM_Q) // NUM_KV
    target = pool_ptr + kind.to(tl.int64)[:, None] * kind_stride
    target = target + kv_head.to(tl.int64)[:, None] * head_stride + slot * D + freqs[None, :]
    pool_dtype = pool_ptr.dtype.element_ty
    kept_low = out_low.to(dtype)
    kept_high = out_high.to(dtype)
    if IS_NARROW:
        kept_low = kept_low.to(tl.float32)
        kept_high = kept_high.to(tl.float32)
        if HAS_SCALES:
            is_kv = is_head & (heads >= NUM_Q)[:, None]
            k_scale = tl.load(
                k_scales + kv_head[:, None],
                mask=is_kv & (heads < NUM_Q + NUM_KV)[:, None],
                other=1.0,
            )
            v_scale = tl.load(v_scales + kv_head[:, None], mask=is_kv & is_value, other=1.0)
            kept_low = kept_low / (k_scale * v_scale)
            kept_high = kept_high / (k_scale * v_scale)
        # As the reference: the largest number instead of one beyond it, and NaN as it is.
        kept_low = tl.where(kept_low > 448.0, 448.0, tl.where(kept_low < -448.0, -448.0, kept_low))
        kept_high = tl.where(kept_high > 448.0, 448.0, kept_high)
        kept_high = tl.where(kept_high < -448.0, -448.0, kept_high)
    tl.store(target, kept_low.to(pool_dtype), mask=is_written)
    tl.store(target + F, kept_high.to(pool_dtype), mask=is_written)


def norm_rope_write(
    qkv_TX: Tensor,
    q_norm_D: Tensor,
    k_norm_D: Tensor,
    rope: RopeTable,
    positions_T: Tensor,
    slots_T: Tensor,
    pool_2GNSD: Tensor,
    *,
    num_q_heads: int,
    eps: float,
    k_scale_G: Tensor | None = None,
    v_scale_G: Tensor | None = None,
) -> Tensor:
    """Do as ``reference.norm_rope_write``; a head's slots are contiguous in the pool."""
    num_rows = qkv_TX.shape[0]
    _, num_kv_heads, _, _, head_dim = pool_2GNSD.shape
    q_TQD = qkv_TX.new_empty((num_rows, num_q_heads, head_dim))
    if num_rows == 0:
        return q_TQD
    num_heads = num_q_heads + 2 * num_kv_heads
    # Few rows: many small programs fill the device; many rows: fewer, larger ones.
    heads = 4 if num_rows <= 64 else 8
    launch(
        norm_rope_write_kernel,
        (num_rows, triton.cdiv(num_heads, heads)),
        qkv_TX,
        q_norm_D,
        k_norm_D,
        rope.cos_PF,
        rope.sin_PF,
        positions_T,
        slots_T,
        pool_2GNSD,
        q_TQD,
        k_scale_G,
        v_scale_G,
        qkv_TX.stride(0),
        *pool_2GNSD.stride()[:2],
        eps,
        NUM_Q=num_q_heads,
        NUM_KV=num_kv_heads,
        HEADS=heads,
        D=head_dim,
        IS_NARROW=pool_2GNSD.element_size() == 1,
        HAS_SCALES=k_scale_G is not None,
        num_warps=1 if heads == 4 else 2,
    )
    return q_TQD
