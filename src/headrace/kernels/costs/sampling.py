"""Bytes and operations of device sampling: the least that any implementation has to do."""

from __future__ import annotations

# Noise of one token: three multiplications and shifts of 64 bits (about 35 instructions of 32
# bits), a logarithm, an exponential, a division and two comparisons.
PLAIN_OPERATIONS_PER_LOGIT = 70
# Widening, comparison with the maximum, subtraction, exponential, sum.
SCAN_OPERATIONS_PER_LOGIT = 5


def device_sample_bytes(
    num_rows: int, *, vocab_size: int, logit_bytes: int = 4, num_penalised: int = 0
) -> int:
    """Return the bytes that must be read: every logit once, two bytes per count.

    Rows with filters read some of their logits again, which a small batch finds in the L2 cache.

    Args:
        num_rows: Rows of the batch.
        vocab_size: Logits per row.
        logit_bytes: Bytes of a logit.
        num_penalised: Rows with penalties.

    Example:
        >>> device_sample_bytes(128, vocab_size=151_936)
        77791232
    """
    return vocab_size * (num_rows * logit_bytes + num_penalised * 2)


def device_sample_operations(num_rows: int, *, vocab_size: int, num_plain: int = 0) -> int:
    """Return the arithmetic instructions, integer ones included, to compare with a device's rate.

    Args:
        num_rows: Rows of the batch.
        vocab_size: Logits per row.
        num_plain: Rows that race their whole vocabulary: temperature without top-k, top-p, min-p.

    Example:
        >>> device_sample_operations(2, vocab_size=1000, num_plain=1)
        80000
    """
    per_column = num_rows * SCAN_OPERATIONS_PER_LOGIT + num_plain * PLAIN_OPERATIONS_PER_LOGIT
    return vocab_size * per_column
