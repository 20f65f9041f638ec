"""QK-norm, RoPE and the write into the paged cache, in plain torch.

Shape letters:
    T = rows   Q = query heads   G = KV heads   D = head dimension   X = (Q + 2G) * D
    N = blocks of the pool   S = token slots of a block
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.norm import rms_norm
from headrace.kernels.rope import RopeTable, apply_rope

# Beyond it a cast makes NaN on some devices and saturates on others.
LARGEST_E4M3 = 448.0


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
    """Norm and rotate queries and keys, write keys and values to their slots.

    Args:
        qkv_TX: Query heads, then key heads, then value heads of each row. Not modified.
        q_norm_D: RMSNorm weight of query heads.
        k_norm_D: RMSNorm weight of key heads.
        rope: Rotation table in the rows' dtype, over all positions that occur.
        positions_T: Position of each row, int32 or int64.
        slots_T: ``block * S + offset``, all different; -1 writes nothing (a padding row).
        pool_2GNSD: The layer's pool; written in place, in its dtype.
        num_q_heads: Q.
        eps: Added to the mean squares.
        k_scale_G: fp32 scales that keys are divided by, in an 8-bit pool; both or none.
        v_scale_G: Likewise of the values.

    Returns:
        Rotated queries ``[T, Q, D]`` in the rows' dtype, contiguous.

    Numerics:
        As ``rms_norm`` and ``apply_rope``: each product rounded to the rows' dtype. Row-local. What
        an 8-bit pool cannot hold becomes the largest number that it can; NaN stays NaN.

    Cost:
        Memory bound: reads T*X elements, writes as many. The reference syncs for padding rows.
    """
    num_kv_heads, head_dim = pool_2GNSD.shape[1], pool_2GNSD.shape[4]
    heads_THD = qkv_TX.unflatten(1, (-1, head_dim))
    rope_rows = rope.rows(positions_T.long())
    q_TQD = apply_rope(rms_norm(heads_THD[:, :num_q_heads], q_norm_D, eps=eps), *rope_rows)
    keys = heads_THD[:, num_q_heads : num_q_heads + num_kv_heads]
    k_TGD = apply_rope(rms_norm(keys, k_norm_D, eps=eps), *rope_rows)
    kv_2TGD = torch.stack((k_TGD, heads_THD[:, num_q_heads + num_kv_heads :]))
    if pool_2GNSD.itemsize == 1:
        kv_2TGD = _narrow(kv_2TGD, k_scale_G, v_scale_G)
    is_real_T = slots_T >= 0
    slots_R = slots_T[is_real_T].long()
    # index_put, since index_copy knows no 8-bit floats.
    flat = pool_2GNSD.flatten(2, 3)
    flat[:, :, slots_R] = kv_2TGD[:, is_real_T].transpose(1, 2).to(flat.dtype)
    return q_TQD.contiguous()


def _narrow(kv_2TGD: Tensor, k_scale_G: Tensor | None, v_scale_G: Tensor | None) -> Tensor:
    """Divide by the heads' scales, and stay within what fp8-e4m3 can hold."""
    wide = kv_2TGD.float()
    if k_scale_G is not None and v_scale_G is not None:
        wide = wide / torch.stack((k_scale_G, v_scale_G))[:, None, :, None]
    return wide.clamp(-LARGEST_E4M3, LARGEST_E4M3)
