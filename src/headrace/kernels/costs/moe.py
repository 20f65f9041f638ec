"""Bytes and FLOPs of a layer's experts: what their floors are made of.

Only what any implementation must move is counted: each hit expert's weights once, rows and results
once. Activations between the two projections are an implementation's own choice, and the tables of
a routing are too small to count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """Sizes of one rank's expert layer.

    Attributes:
        num_experts: Experts held.
        top_k: Experts of a token.
        hidden: Hidden width.
        width: Expert width.
        row_bytes: Bytes of an element of rows and results.
        weight_bytes: Bytes of an element of the weights.
    """

    num_experts: int
    top_k: int
    hidden: int
    width: int
    row_bytes: int = 2
    weight_bytes: int = 2


def expert_weight_bytes(sizes: ExpertSizes) -> int:
    """Return the bytes of one expert's gate, up and down projections.

    Example:
        >>> sizes = ExpertSizes(num_experts=128, top_k=8, hidden=2048, width=768)
        >>> expert_weight_bytes(sizes)  # 9.4 MB
        9437184
    """
    return 3 * sizes.hidden * sizes.width * sizes.weight_bytes


def mean_experts_hit(num_tokens: int, sizes: ExpertSizes) -> float:
    """Return how many experts get a token on average if the gate is uniform.

    A trained gate is not: count the experts of a real routing where there is one.

    Example:
        >>> sizes = ExpertSizes(num_experts=128, top_k=8, hidden=2048, width=768)
        >>> [round(mean_experts_hit(tokens, sizes), 1) for tokens in (1, 16, 64, 256)]
        [8.0, 82.4, 125.9, 128.0]
    """
    missed = (1 - sizes.top_k / sizes.num_experts) ** num_tokens
    return sizes.num_experts * (1 - missed)


def experts_bytes(num_tokens: int, num_hit: float, sizes: ExpertSizes) -> float:
    """Return the bytes that the experts of one layer move.

    Args:
        num_tokens: Rows without padding.
        num_hit: Experts with at least one of them.
        sizes: Of the layer.

    Example:
        >>> sizes = ExpertSizes(num_experts=128, top_k=8, hidden=2048, width=768)
        >>> experts_bytes(1, 8, sizes)  # 75 MB, all but all of it weights
        75534336
    """
    rows = num_tokens * (1 + sizes.top_k) * sizes.hidden * sizes.row_bytes
    return num_hit * expert_weight_bytes(sizes) + rows


def experts_flops(num_tokens: int, sizes: ExpertSizes) -> int:
    """Return the multiplications and additions of the experts of one layer.

    Example:
        >>> sizes = ExpertSizes(num_experts=128, top_k=8, hidden=2048, width=768)
        >>> experts_flops(6000, sizes)  # 0.45 TFLOP
        452984832000
    """
    return 6 * num_tokens * sizes.top_k * sizes.hidden * sizes.width


def combine_bytes(num_tokens: int, sizes: ExpertSizes) -> int:
    """Return the bytes that the weighted sum, residual addition and norm of one layer move.

    Results of the experts and the residual read, the residual and the normalised rows written.

    Example:
        >>> sizes = ExpertSizes(num_experts=128, top_k=8, hidden=2048, width=768)
        >>> combine_bytes(256, sizes)
        11534336
    """
    return num_tokens * (sizes.top_k + 3) * sizes.hidden * sizes.row_bytes
