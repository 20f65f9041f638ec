"""Plain-torch paged decode attention.

Shape letters:
    B = rows of the batch   H = query heads   G = KV heads   R = H / G   D = head dimension
    N = blocks of the pool  S = token slots of a block       P = width of the block table
    L = P * S, the token slots of a row
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.attention.decode_plan import DecodeScratch


def paged_decode_attention(
    q_BHD: Tensor,
    pool_2GNSD: Tensor,
    block_table_BP: Tensor,
    seq_lens_B: Tensor,
    *,
    scale: float,
    k_scale_G: Tensor | None = None,
    v_scale_G: Tensor | None = None,
    scratch: DecodeScratch | None = None,
    out_BHD: Tensor | None = None,
) -> Tensor:
    """Attend each row's newest query to every key that its sequence has in the pool.

    For row b, query head h, g = h // R and t over the first ``seq_lens_B[b]`` tokens:

        out[b, h] = sum_t softmax_t(scale * k_scale[g] * q[b, h] . k[t, g]) v_scale[g] v[t, g]

    where token t lies in slot ``t % S`` of block ``block_table_BP[b, t // S]``. The newest token's
    own key must already be there.

    Args:
        q_BHD: Queries after RoPE; bf16, fp16 or fp32, unit stride in D. Not modified.
        pool_2GNSD: The layer's KV pool, K first, in q's dtype or fp8-e4m3; S and D contiguous.
            Read only. Slots that hold no token of a row may hold anything, NaN included.
        block_table_BP: int32 block ids. Entries past a row's last block are never followed.
        seq_lens_B: int32 tokens of each row, newest included. Zero marks a padding row, whose
            output is all zeros.
        scale: Softmax scale, normally ``D ** -0.5``.
        k_scale_G: fp32 quantization scales of the keys by head; ones when None.
        v_scale_G: fp32 quantization scales of the values by head; ones when None.
        scratch: Buffers of ``make_decode_scratch`` for at least B rows and L tokens; allocated
            when None. This implementation needs none.
        out_BHD: Destination, unit stride in D; allocated when None. Must not overlap q.

    Returns:
        The output in q's dtype: ``out_BHD`` itself if it was given.

    Numerics:
        Scores, softmax and sums in fp32, one rounding at the end. A row does not depend on the
        other rows.

    Cost:
        Memory bound; see ``kernels/costs/attention.py``. This implementation gathers all L slots
        of every row in fp32: it is for tests and for devices without another. No host sync.

    Source:
        Paging after PagedAttention (arXiv 2309.06180).
    """
    _, num_kv_heads, _, block_size, head_dim = pool_2GNSD.shape
    out_BHD = torch.empty_like(q_BHD) if out_BHD is None else out_BHD
    slots_L = torch.arange(block_table_BP.shape[1] * block_size, device=q_BHD.device)
    is_token_BL = slots_L < seq_lens_B[:, None]
    # An entry past the end may be any number: it must not even become an address.
    table_BP = torch.where(is_token_BL[:, ::block_size], block_table_BP, 0).long()
    kv_2GBLD = pool_2GNSD[:, :, table_BP].flatten(3, 4).float()
    q_GBRD = q_BHD.float().unflatten(1, (num_kv_heads, -1)).transpose(0, 1)
    scores_GBRL = q_GBRD @ kv_2GBLD[0].transpose(2, 3) * scale
    if k_scale_G is not None:
        scores_GBRL *= k_scale_G.view(-1, 1, 1, 1)
    scores_GBRL = scores_GBRL.masked_fill(~is_token_BL[:, None], -torch.inf)
    weights_GBRL = torch.softmax(scores_GBRL, -1)
    # A padding row has no maximum and no sum, so its weights came out as NaN.
    weights_GBRL = weights_GBRL.masked_fill((seq_lens_B == 0)[:, None, None], 0.0)
    values_GBLD = kv_2GBLD[1].masked_fill(~is_token_BL[:, :, None], 0.0)
    out_GBRD = weights_GBRL @ values_GBLD
    if v_scale_G is not None:
        out_GBRD *= v_scale_G.view(-1, 1, 1, 1)
    return out_BHD.copy_(out_GBRD.transpose(0, 1).reshape(*q_BHD.shape[:2], head_dim))
