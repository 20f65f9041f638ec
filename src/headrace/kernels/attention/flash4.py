"""Paged prefill attention by the library flash-attn-4.

Shape letters:
    T = query tokens of all chunks   H = query heads   G = KV heads   D = head dimension
    N = blocks of the pool   S = token slots of a block
    B = sequences            P = width of the block table
"""

from __future__ import annotations

from flash_attn.cute import flash_attn_varlen_func
from torch import Tensor


def paged_prefill_attention(
    q_THD: Tensor,
    pool_2GNSD: Tensor,
    block_table_BP: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    *,
    scale: float,
    max_query_len: int,
    k_scale_G: Tensor | None = None,
    v_scale_G: Tensor | None = None,
    out_THD: Tensor | None = None,
) -> Tensor:
    """Attend as ``prefill_reference.paged_prefill_attention``.

    Args:
        q_THD: See the reference, as for all arguments.
        pool_2GNSD: Likewise. Blocks of exactly one of the library's key tiles (128 tokens at a
            head dimension up to 128) are loaded whole, hence finite slots past the end.
        block_table_BP: Likewise.
        query_starts_B1: Likewise.
        seq_lens_B: Likewise.
        scale: Likewise.
        max_query_len: Likewise. The library compiles one kernel for chunks of a single tile and
            one for longer ones, at the first call of each.
        k_scale_G: None: the pool has q's dtype here.
        v_scale_G: None, likewise.
        out_THD: Likewise. The library allocates its own result, which is then copied.

    Returns:
        The output in q's dtype: ``out_THD`` itself if it was given.

    Numerics:
        The library's: fp32 sums, weights rounded to q's dtype. One split of the keys, so that no
        result depends on the number of programs.
    """
    # The library wants [N, S, G, D] in any strides: views, not copies.
    k_NSGD, v_NSGD = pool_2GNSD.permute(0, 2, 3, 1, 4)
    result_THD, _ = flash_attn_varlen_func(
        q_THD,
        k_NSGD,
        v_NSGD,
        cu_seqlens_q=query_starts_B1,
        seqused_k=seq_lens_B,
        max_seqlen_q=max_query_len,
        page_table=block_table_BP,
        softmax_scale=scale,
        causal=True,
        num_splits=1,
    )
    return result_THD if out_THD is None else out_THD.copy_(result_THD)
