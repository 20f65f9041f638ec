"""Bytes and FLOPs of paged attention: what its floors are made of.

Only what any implementation must move is counted: keys and values once, queries and outputs once.
Scratch is an implementation's own choice, and block tables and lengths are too small to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """Sizes of one rank's attention layer.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: KV heads.
        head_dim: Width of a head.
        row_bytes: Bytes of an element of queries and outputs.
        kv_bytes: Bytes of an element of the pool.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    row_bytes: int = 2
    kv_bytes: int = 2


def decode_bytes(seq_lens: Sequence[int], sizes: AttentionSizes) -> int:
    """Return the bytes that a decode step of one layer moves.

    Args:
        seq_lens: Tokens of each row, its newest included; 0 for padding.
        sizes: Of the layer.

    Example:
        >>> sizes = AttentionSizes(num_heads=64, num_kv_heads=4, head_dim=128)
        >>> decode_bytes([4096] * 64, sizes)  # 537 MB of keys and values, 2 MB of rows
        538968064
    """
    keys = 2 * sum(seq_lens) * sizes.num_kv_heads * sizes.head_dim * sizes.kv_bytes
    return keys + _row_bytes(len(seq_lens), sizes)


def decode_flops(seq_lens: Sequence[int], sizes: AttentionSizes) -> int:
    """Return the multiplications and additions of a decode step of one layer.

    Example:
        >>> sizes = AttentionSizes(num_heads=64, num_kv_heads=4, head_dim=128)
        >>> intensity = decode_flops([4096] * 64, sizes) / decode_bytes([4096] * 64, sizes)
        >>> round(intensity, 2)  # FLOP per byte
        15.94
    """
    return 4 * sum(seq_lens) * sizes.num_heads * sizes.head_dim


def prefill_pairs(query_lens: Sequence[int], seq_lens: Sequence[int]) -> int:
    """Return how many (query, visible key) pairs the chunks have, for one head.

    Args:
        query_lens: Tokens of each sequence's chunk.
        seq_lens: Tokens of each sequence, its chunk included.

    Example:
        >>> prefill_pairs([3], [3])  # 1 + 2 + 3
        6
        >>> prefill_pairs([2, 0], [10, 7])  # 9 + 10
        19
    """
    lengths = zip(query_lens, seq_lens, strict=True)
    return sum(queries * tokens - queries * (queries - 1) // 2 for queries, tokens in lengths)


def prefill_flops(query_lens: Sequence[int], seq_lens: Sequence[int], sizes: AttentionSizes) -> int:
    """Return the multiplications and additions of a prefill step of one layer.

    Example:
        >>> sizes = AttentionSizes(num_heads=32, num_kv_heads=4, head_dim=128)
        >>> prefill_flops([8192], [8192], sizes)  # 0.55 TFLOP
        549822922752
    """
    return 4 * prefill_pairs(query_lens, seq_lens) * sizes.num_heads * sizes.head_dim


def prefill_bytes(query_lens: Sequence[int], seq_lens: Sequence[int], sizes: AttentionSizes) -> int:
    """Return the bytes that a prefill step of one layer moves if each key is read once.

    Example:
        >>> sizes = AttentionSizes(num_heads=32, num_kv_heads=4, head_dim=128)
        >>> prefill_bytes([8192], [8192], sizes)
        150994944
    """
    tokens = sum(length for queries, length in zip(query_lens, seq_lens, strict=True) if queries)
    keys = 2 * tokens * sizes.num_kv_heads * sizes.head_dim * sizes.kv_bytes
    return keys + _row_bytes(sum(query_lens), sizes)


def _row_bytes(num_rows: int, sizes: AttentionSizes) -> int:
    """Queries read and outputs written."""
    return 2 * num_rows * sizes.num_heads * sizes.head_dim * sizes.row_bytes
