"""Bytes of QK-norm, RoPE and the cache write: rows read, queries and cache entries written."""

from __future__ import annotations

from headrace.kernels.costs.attention import AttentionSizes


def norm_rope_write_bytes(num_rows: int, sizes: AttentionSizes) -> int:
    """Return the bytes that one layer's projected rows move.

    Norm weights and indices are too small to count; each row reads its angles.

    Args:
        num_rows: Rows without padding.
        sizes: Of the layer.

    Example:
        >>> sizes = AttentionSizes(num_heads=32, num_kv_heads=4, head_dim=128)
        >>> norm_rope_write_bytes(256, sizes)  # 5.3 MB
        5308416
    """
    heads_read = sizes.num_heads + 2 * sizes.num_kv_heads
    # A row's cosines and sines together are as wide as a head.
    row_items = heads_read + sizes.num_heads + 1
    kv_items = 2 * sizes.num_kv_heads
    per_row = (row_items * sizes.row_bytes + kv_items * sizes.kv_bytes) * sizes.head_dim
    return num_rows * per_row
