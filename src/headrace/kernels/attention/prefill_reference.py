"""Plain-torch paged prefill attention.

Shape letters:
    T = query tokens of all chunks   H = query heads   G = KV heads   R = H / G
    D = head dimension   N = blocks of the pool   S = token slots of a block
    B = sequences        P = width of the block table
    C = query tokens attended at a time   L = tokens of one sequence
"""

from __future__ import annotations

import torch
from torch import Tensor

# Scores of one piece: 2^28 of fp32 take 1 GiB.
MAX_SCORES = 1 << 28


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
    """Attend each query of several chunks to every key of its sequence up to its own position.

    Rows ``query_starts_B1[b] .. query_starts_B1[b + 1] - 1`` are the last tokens of sequence b. For
    row t of them at position p, query head h and g = h // R:

        out[t, h] = sum_{j <= p} softmax_j(scale * q[t, h] . k[j, g]) v[j, g]

    where token j lies in slot ``j % S`` of block ``block_table_BP[b, j // S]``. The chunks' own
    keys and values must already be there.

    Args:
        q_THD: Queries after RoPE, chunk after chunk; bf16, fp16 or fp32, unit stride in D. Not
            modified.
        pool_2GNSD: The layer's KV pool, K first, in q's dtype or fp8-e4m3; S and D contiguous.
            Read only.
            Blocks that a sequence does not reach may hold anything; in the block that it ends
            in, slots past its end must hold finite numbers, whichever.
        block_table_BP: int32 block ids. Entries past a sequence's last block are never followed.
        query_starts_B1: int32, ascending from 0. An empty chunk is a padding sequence.
        seq_lens_B: int32 tokens of each sequence, its chunk included.
        scale: Softmax scale, normally ``D ** -0.5``.
        max_query_len: At least as many tokens as the longest chunk has.
        k_scale_G: fp32 quantization scales of the keys by head; ones when None.
        v_scale_G: fp32 quantization scales of the values by head; both or none.
        out_THD: Destination, unit stride in D; allocated when None. Must not overlap q.

    Returns:
        The output in q's dtype: ``out_THD`` itself if it was given. Rows past the last chunk hold
        anything.

    Numerics:
        Scores, softmax and sums in fp32, one rounding at the end.

    Cost:
        Compute bound from a few hundred tokens on; see ``kernels/costs/attention.py``. This
        implementation reads the lengths on the host: one synchronization a call.

    Source:
        Paging after PagedAttention (arXiv 2309.06180).
    """
    del max_query_len  # the lengths themselves are at hand
    out_THD = torch.empty_like(q_THD) if out_THD is None else out_THD
    starts, lengths = query_starts_B1.tolist(), seq_lens_B.tolist()
    for row, length in enumerate(lengths):
        queries = slice(starts[row], starts[row + 1])
        if queries.stop > queries.start:
            blocks = block_table_BP[row, : -(-length // pool_2GNSD.shape[3])].long()
            kv_2GLD = pool_2GNSD[:, :, blocks].flatten(2, 3)[:, :, :length].float()
            if k_scale_G is not None and v_scale_G is not None:
                kv_2GLD *= torch.stack((k_scale_G, v_scale_G))[:, :, None, None]
            _attend_chunk(q_THD[queries], kv_2GLD, out_THD[queries], scale=scale)
    return out_THD


def _attend_chunk(q_THD: Tensor, kv_2GLD: Tensor, out_THD: Tensor, *, scale: float) -> None:
    """Attend a sequence's last T tokens, as many at a time as the scores' memory allows."""
    num_queries, num_heads, _ = q_THD.shape
    _, num_kv_heads, length, _ = kv_2GLD.shape
    positions_L = torch.arange(length, device=q_THD.device)
    step = max(1, MAX_SCORES // (num_heads * length))
    for first in range(0, num_queries, step):
        q_CHD = q_THD[first : first + step].float()
        q_GCRD = q_CHD.unflatten(1, (num_kv_heads, -1)).transpose(0, 1)
        scores_GCRL = (q_GCRD.flatten(1, 2) @ kv_2GLD[0].transpose(1, 2)).unflatten(
            1, (len(q_CHD), -1)
        )
        own_C = positions_L[length - num_queries + first :][: len(q_CHD)]
        is_later_C1L = (positions_L > own_C[:, None])[:, None]
        weights_GCRL = torch.softmax(
            (scores_GCRL * scale).masked_fill(is_later_C1L, -torch.inf), -1
        )
        out_GCRD = (weights_GCRL.flatten(1, 2) @ kv_2GLD[1]).unflatten(1, (len(q_CHD), -1))
        out_THD[first : first + step] = out_GCRD.transpose(0, 1).flatten(1, 2).to(out_THD.dtype)
