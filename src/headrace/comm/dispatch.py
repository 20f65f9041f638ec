"""How tokens meet the experts of other ranks, and how the results come back as canonical sums.

Two exchanges of one signature, which ``models`` declares as ``ExpertExchange``: ``run`` takes
hidden rows in the model's dtype, int64 model-wide expert ids (distinct in a row; -1 is no expert)
and fp32 weights, and returns the fp32 canonical sum ``[T, H]``, the same bits for any number of
ranks. It is a collective: every rank calls it, with zero tokens too.

A prefill replica's inputs are replicated: dispatch is a local selection, combine an all-reduce. A
decode replica's are not: each token travels once to every rank that owns one of its experts, and
one fp32 row comes back from each.

Shape letters:
    T = tokens of this rank    R = rows at a rank that owns experts    K = experts per token
    H = hidden width           N = subtrees that one rank's experts make    D = ranks
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.comm.canonical import all_reduce_subtrees
from headrace.comm.group import Group
from headrace.kernels.tree import tree_sum

# (x_RH, topk_ids_RK, topk_weights_RK) -> fp32 [R, N, H]: per row, the roots of this rank's
# subtrees of the sum over experts, in leaf order. Ids are model-wide; those of other ranks' experts
# add nothing. R may be zero. A subtree without any expert of the row is exactly +0.
LocalExperts = Callable[[Tensor, Tensor, Tensor], Tensor]


class ReplicatedExchange:
    """For ranks that all hold the same tokens (prefill: TP attention, EP experts).

    Args:
        group: The replica's ranks; rank r owns expert part ``r // width_ranks`` and of its
            experts' width part ``r % width_ranks``.
        num_experts: Experts of the model, split evenly and contiguously.
        width_ranks: Ranks that share an expert, ``tp / ep``.
    """

    def __init__(self, group: Group, *, num_experts: int, width_ranks: int = 1) -> None:
        self._group = group
        self._width_ranks = width_ranks
        per_part = num_experts * width_ranks // group.size
        first = group.rank // width_ranks * per_part
        self._experts = range(first, first + per_part)

    def run(
        self,
        x_TH: Tensor,
        topk_ids_TK: Tensor,
        topk_weights_TK: Tensor,
        local_experts: LocalExperts,
    ) -> Tensor:
        """Combine all experts; all ranks pass the same tensors and get the same result."""
        is_local_TK = (topk_ids_TK >= self._experts.start) & (topk_ids_TK < self._experts.stop)
        rows_R = is_local_TK.any(1).nonzero().squeeze(1)
        num_tokens = x_TH.shape[0]
        if rows_R.numel() == num_tokens:
            subtrees_TNH = local_experts(x_TH, topk_ids_TK, topk_weights_TK)
        else:
            subtrees_RNH = local_experts(x_TH[rows_R], topk_ids_TK[rows_R], topk_weights_TK[rows_R])
            subtrees_TNH = subtrees_RNH.new_zeros((num_tokens, *subtrees_RNH.shape[1:]))
            subtrees_TNH[rows_R] = subtrees_RNH
        return all_reduce_subtrees(self._group, subtrees_TNH, width_ranks=self._width_ranks)


class AllToAllExchange:
    """For ranks that each hold their own tokens (decode and mono: DP attention, EP experts).

    Args:
        group: The replica's ranks, a power of two; rank r owns the r-th run of experts.
        num_experts: Experts of the model, split evenly and contiguously.
    """

    def __init__(self, group: Group, *, num_experts: int) -> None:
        self._group = group
        self._experts_per_rank = num_experts // group.size

    def run(
        self,
        x_TH: Tensor,
        topk_ids_TK: Tensor,
        topk_weights_TK: Tensor,
        local_experts: LocalExperts,
    ) -> Tensor:
        """Combine all experts; token counts differ between ranks and may be zero."""
        if self._group.size == 1:
            return tree_sum(local_experts(x_TH, topk_ids_TK, topk_weights_TK), dim=1)
        needs_DT = self._ranks_needed(topk_ids_TK)
        ranks_P, tokens_P = needs_DT.nonzero(as_tuple=True)
        counts = needs_DT.sum(1).tolist()
        packed = _pack(x_TH[tokens_P], topk_ids_TK[tokens_P], topk_weights_TK[tokens_P])
        received = self._group.all_to_all(list(packed.split(counts)))
        rows = _unpack(torch.cat(received), x_TH, num_topk=topk_ids_TK.shape[1])
        # This rank's experts are one subtree: one row goes back for each that came.
        subtrees_RH = tree_sum(local_experts(*rows), dim=1)
        back = subtrees_RH.split([part.shape[0] for part in received])
        returned_PH = torch.cat(self._group.all_to_all(list(back)))
        sums_TDH = returned_PH.new_zeros((x_TH.shape[0], self._group.size, x_TH.shape[1]))
        # A rank that was not asked counts as +0, which is what its subtree would have been.
        sums_TDH[tokens_P, ranks_P] = returned_PH
        return tree_sum(sums_TDH, dim=1)

    def _ranks_needed(self, topk_ids_TK: Tensor) -> Tensor:
        # Column 0 takes the choices that are none (-1): padding rows travel nowhere.
        owners_TK = topk_ids_TK // self._experts_per_rank + 1
        needs_TD = torch.zeros((topk_ids_TK.shape[0], self._group.size + 1), dtype=torch.bool)
        return needs_TD.scatter_(1, owners_TK, True)[:, 1:].t()


def _pack(x_RH: Tensor, ids_RK: Tensor, weights_RK: Tensor) -> Tensor:
    """Lay each row's hidden state, ids (int32) and weights (fp32) side by side as bytes."""
    columns = (x_RH, ids_RK.to(torch.int32), weights_RK.to(torch.float32))
    return torch.cat([column.contiguous().view(torch.uint8) for column in columns], dim=1)


def _unpack(packed: Tensor, like_TH: Tensor, *, num_topk: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden_bytes = like_TH.shape[1] * like_TH.element_size()
    x, ids, weights = packed.split((hidden_bytes, 4 * num_topk, 4 * num_topk), dim=1)
    return (
        x.contiguous().view(like_TH.dtype),
        ids.contiguous().view(torch.int32).to(torch.int64),
        weights.contiguous().view(torch.float32),
    )
