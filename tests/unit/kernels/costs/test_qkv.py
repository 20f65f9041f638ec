"""Bytes of the fused write equal those of the tensors."""

from headrace.kernels.costs.attention import AttentionSizes
from headrace.kernels.costs.qkv import norm_rope_write_bytes


def test_rows_are_read_and_queries_and_entries_written() -> None:
    sizes = AttentionSizes(num_heads=6, num_kv_heads=2, head_dim=4, row_bytes=2, kv_bytes=1)
    read = (6 + 2 + 2) * 4 * 2 + 4 * 2
    written = 6 * 4 * 2 + 2 * 2 * 4 * 1
    assert norm_rope_write_bytes(5, sizes) == 5 * (read + written)
