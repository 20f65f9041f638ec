"""The KV pool of one layer as a tensor, and writing tokens into it.

Shape letters:
    G = KV heads held   N = blocks of the pool   S = token slots of a block   D = head dimension
    T = tokens
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.core.layouts import CacheLayout


def view_kv_pool(region: Tensor, layout: CacheLayout, *, layer: int) -> Tensor:
    """View one layer's area of a rank's KV region.

    Args:
        region: uint8 bytes of the whole region, contiguous, aligned to the element size.
        layout: How the region is laid out.
        layer: Which layer.

    Returns:
        ``[2, G, N, S, D]`` (K first) in the layer's dtype, sharing the region's memory.
    """
    schema = layout.layers[layer]
    start = layout.layer_offset(layer)
    area = region[start : start + layout.layer_bytes(layer)]
    return area.view(getattr(torch, schema.dtype)).view(
        2, layout.num_heads, layout.num_blocks, layout.block_size, schema.head_dim
    )


def write_kv(pool_2GNSD: Tensor, k_TGD: Tensor, v_TGD: Tensor, slots_T: Tensor) -> None:
    """Write tokens' keys and values into their slots.

    Args:
        pool_2GNSD: The layer's pool, contiguous; written in place.
        k_TGD: Keys after RoPE, rounded to the pool's dtype; T may be 0.
        v_TGD: Values, likewise.
        slots_T: int64 ``block * S + offset``, all different.

    Cost:
        Memory bound: 2*T*G*D elements read and written. No host sync.
    """
    kv_2TGD = torch.stack((k_TGD, v_TGD)).to(pool_2GNSD.dtype)
    pool_2GNSD.flatten(2, 3).index_copy_(2, slots_T, kv_2TGD.transpose(1, 2))
