"""What a layer needs of the other ranks: two strategies that the engine joins to ``comm``.

Both end in canonical sums: ranks exchange fp32 subtree roots and finish the same tree, so a
result does not depend on how many ranks there are. Here are the forms for a rank on its own.

Shape letters: T = tokens of this rank   R = rows at a rank that owns experts   H = hidden width
    K = experts per token   S = subtrees that one rank's experts make
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from headrace.kernels.tree import tree_sum

# fp32 root of this rank's subtree, [T, H] -> fp32 sum over all ranks, [T, H]. A collective among
# the ranks that split attention heads and dense MLPs. The result may be the argument itself.
AttentionReduce = Callable[[Tensor], Tensor]

# (x_RH, topk_ids_RK, topk_weights_RK) -> fp32 [R, S, H]: the roots of this rank's subtrees of
# each row's sum over experts, in leaf order. Ids of experts held elsewhere add nothing.
LocalExperts = Callable[[Tensor, Tensor, Tensor], Tensor]


class ExpertExchange(Protocol):
    """One replica's way to its experts."""

    def run(
        self,
        x_TH: Tensor,
        topk_ids_TK: Tensor,
        topk_weights_TK: Tensor,
        local_experts: LocalExperts,
    ) -> Tensor:
        """Compute the weighted sum over every token's experts, wherever they are.

        A collective: every rank calls it once per MoE layer, with zero tokens too.

        Args:
            x_TH: Rows in the model dtype, contiguous. Not modified.
            topk_ids_TK: int64 model-wide expert ids, different within a row. Not modified.
            topk_weights_TK: fp32. Not modified.
            local_experts: This rank's experts.

        Returns:
            fp32 ``[T, H]``, the canonical sum.
        """
        ...


def no_reduce(partial_TH: Tensor) -> Tensor:
    """Reduce over one rank: its subtree is the tree."""
    return partial_TH


class LocalExchange:
    """All experts are here (one rank): the whole canonical computation with no exchange."""

    def run(
        self,
        x_TH: Tensor,
        topk_ids_TK: Tensor,
        topk_weights_TK: Tensor,
        local_experts: LocalExperts,
    ) -> Tensor:
        """See ``ExpertExchange.run``."""
        return tree_sum(local_experts(x_TH, topk_ids_TK, topk_weights_TK), dim=1)
