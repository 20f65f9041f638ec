"""Bytes of RMSNorm, alone or after a residual add: rows once each way, the weight once."""

from __future__ import annotations


def rms_norm_bytes(num_rows: int, *, width: int, item_bytes: int = 2) -> int:
    """Return the bytes that a norm moves.

    Args:
        num_rows: Rows.
        width: Elements of a row.
        item_bytes: Bytes of an element of rows and weight.

    Example:
        >>> rms_norm_bytes(32, width=2048)
        266240
    """
    return (2 * num_rows + 1) * width * item_bytes


def add_rms_norm_bytes(num_rows: int, *, width: int, item_bytes: int = 2) -> int:
    """Return the bytes that a residual add and a norm move: two rows read, two written.

    Example:
        >>> add_rms_norm_bytes(32, width=2048)
        528384
    """
    return (4 * num_rows + 1) * width * item_bytes
