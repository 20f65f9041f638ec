"""Bytes and FLOPs of a product of rows with a weight: each operand once."""

from __future__ import annotations


def linear_bytes(num_rows: int, *, columns: int, inner: int, item_bytes: int = 2) -> int:
    """Return the bytes that a product moves.

    Args:
        num_rows: Rows.
        columns: Width of the result.
        inner: Width of the rows.
        item_bytes: Bytes of an element of all three matrices.

    Example:
        >>> linear_bytes(1, columns=2048, inner=4096)  # 17 MB, all but all of it weight
        16789504
    """
    return (columns * inner + num_rows * (columns + inner)) * item_bytes


def linear_flops(num_rows: int, *, columns: int, inner: int) -> int:
    """Return the multiplications and additions of a product.

    Example:
        >>> linear_flops(1, columns=2048, inner=4096)
        16777216
    """
    return 2 * num_rows * columns * inner
