"""What the gate decides for a step: each token's experts, and each expert's tokens.

Shape letters: T = tokens   K = experts per token   P = T * K pairs   E = experts
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Pairs of a token and an expert, by token and by expert.

    Pair ``t * K + k`` is token t's k-th expert.

    Attributes:
        weights_TK: fp32 gate weights.
        ids_TK: int32 expert ids; -1 in padding rows.
        order_P: int32 pair numbers sorted by expert, stable; those of padding rows come last.
        starts_E1: int32; expert e's pairs are ``order_P[starts_E1[e]:starts_E1[e + 1]]``.
    """

    weights_TK: Tensor
    ids_TK: Tensor
    order_P: Tensor
    starts_E1: Tensor
