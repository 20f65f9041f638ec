"""Bytes of routing: logits read, a routing written."""

from __future__ import annotations

# A pair's weight, id and place in the order: fp32, int32, int32.
PAIR_BYTES = 12
START_BYTES = 4


def route_bytes(num_tokens: int, *, num_experts: int, top_k: int, logit_bytes: int = 2) -> int:
    """Return the bytes that routing moves.

    Args:
        num_tokens: Rows.
        num_experts: Logits of a row.
        top_k: Experts chosen for a row.
        logit_bytes: Bytes of a logit.

    Example:
        >>> route_bytes(32, num_experts=128, top_k=8)
        11780
    """
    per_token = num_experts * logit_bytes + top_k * PAIR_BYTES
    return num_tokens * per_token + (num_experts + 1) * START_BYTES
