"""Paged prefill attention in Triton: launch settings and the launch.

Shape letters:
    T = query tokens of all chunks   H = query heads   G = KV heads   R = H / G
    D = head dimension   N = blocks of the pool   S = token slots of a block
    B = sequences        P = width of the block table
    M = query rows of a program   K = key tokens of a tile
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from headrace.kernels.attention.triton_chunk import prefill_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillKnobs:
    """Launch settings of the Triton prefill kernel.

    Attributes:
        query_rows: M.
        tile_tokens: K.
        num_warps: Of a program.
        num_stages: Depth of the pipeline of tile loads; Triton 3.6 spends every other one on the
            block table.
    """

    query_rows: int = 128
    tile_tokens: int = 64
    num_warps: int = 8
    num_stages: int = 5


def prefill_knobs(*, head_dim: int, element_bytes: int) -> PrefillKnobs:
    """Choose launch settings by the bytes of a head: shared memory holds the tiles under way."""
    head_bytes = head_dim * element_bytes
    if head_bytes <= 128:
        return PrefillKnobs(tile_tokens=128)
    if head_bytes <= 256:
        return PrefillKnobs()
    return PrefillKnobs(query_rows=64, tile_tokens=32, num_warps=4)


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
    knobs: PrefillKnobs | None = None,
) -> Tensor:
    """Attend as ``prefill_reference.paged_prefill_attention``, in one launch.

    Args:
        q_THD: See the reference, as for all arguments but ``knobs``.
        pool_2GNSD: Likewise; slots past a sequence's end may hold NaN too.
        block_table_BP: Likewise.
        query_starts_B1: Likewise.
        seq_lens_B: Likewise.
        scale: Likewise.
        max_query_len: Likewise.
        k_scale_G: Likewise.
        v_scale_G: Likewise.
        out_THD: Likewise.
        knobs: Launch settings; ``prefill_knobs`` chooses when None.

    Returns:
        The output in q's dtype: ``out_THD`` itself if it was given.

    Numerics:
        Products in q's dtype, sums and maxima in fp32; weights are rounded to q's dtype before
        they meet the values. Tiles are folded from position 0 on, so that a row depends neither
        on the other sequences nor on the chunk that it is computed in.

    Cost:
        4*D FLOPs a key, query row and head, plus up to a tile of each on the diagonal. No host
        sync.

    Source:
        FlashAttention (arXiv 2205.14135), paging after PagedAttention (arXiv 2309.06180).
    """
    out_THD = torch.empty_like(q_THD) if out_THD is None else out_THD
    num_kv_heads, block_size, head_dim = (pool_2GNSD.shape[dim] for dim in (1, 3, 4))
    queries_per_kv = q_THD.shape[1] // num_kv_heads
    if knobs is None:
        knobs = prefill_knobs(head_dim=head_dim, element_bytes=q_THD.element_size())
    num_tiles = triton.cdiv(max_query_len, knobs.query_rows // queries_per_kv)
    grid = (num_tiles, num_kv_heads, len(seq_lens_B))
    if 0 in grid:
        return out_THD
    prefill_kernel[grid](
        q_THD,
        pool_2GNSD,
        block_table_BP,
        query_starts_B1,
        seq_lens_B,
        out_THD,
        k_scale_G,
        v_scale_G,
        scale * math.log2(math.e),
        *q_THD.stride()[:2],
        *pool_2GNSD.stride()[:2],
        block_table_BP.stride(0),
        *out_THD.stride()[:2],
        R=queries_per_kv,
        D=head_dim,
        S=block_size,
        M=knobs.query_rows,
        K=knobs.tile_tokens,
        NUM_STAGES=knobs.num_stages,
        HAS_SCALES=k_scale_G is not None,
        num_warps=knobs.num_warps,
        num_stages=knobs.num_stages,
    )
    return out_THD
