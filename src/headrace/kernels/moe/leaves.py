"""Adding up what experts computed: weighted outputs to leaves, leaves to a rank's subtrees.

Shape letters:
    R = token rows   K = experts per token   E = experts held   H = hidden width
    W = width parts held   P = (row, expert) pairs whose expert is held
    X = rows of a padded arrangement of the pairs   G = expert groups held
    S = subtrees: 1 when the experts are held in full, else G
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.moe.grouping import Pairs
from headrace.kernels.tree import tree_sum

# Elements of the leaves added up at a time: a MiB of leaves stays in cache.
MAX_LEAF_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a rank's experts stand in the model's sum over experts.

    Attributes:
        local_ids: int64; entry i is expert i's place among the experts held, or E.
        group_E: int64 expert group, counted from the first held, of each expert held.
        num_groups: G.
        num_parts: W.
        is_whole: The experts' whole width is held.
    """

    local_ids: Tensor
    group_E: Tensor
    num_groups: int
    num_parts: int
    is_whole: bool

    @property
    def num_experts(self) -> int:
        """E, the experts held."""
        return self.group_E.shape[0]


def sum_pairs(out_XWH: Tensor, pairs: Pairs, weights_RK: Tensor, placement: Placement) -> Tensor:
    """Weigh each pair's output and add up: the rank's subtrees ``[R, S, H]``, fp32.

    Args:
        out_XWH: Down products in the pairs' padded arrangement. Not modified.
        pairs: Where each pair's row stands.
        weights_RK: fp32 gate weights. Not modified.
        placement: The rank's experts.
    """
    (num_rows, _), (_, num_parts, hidden) = weights_RK.shape, out_XWH.shape
    num_groups = placement.num_groups
    weights_P = weights_RK.flatten()[pairs.slots_P]
    group_P = placement.group_E[pairs.experts_P]
    # Leaves of a few rows at a time stay in cache; pairs are in row order.
    slab = max(1, MAX_LEAF_ELEMENTS // (num_groups * num_parts * hidden))
    starts = range(0, max(1, num_rows), slab)
    bounds = torch.searchsorted(pairs.rows_P, torch.tensor([*starts, num_rows])).tolist()
    sums = []
    for start, first, last in zip(starts, bounds, bounds[1:], strict=False):
        leaves = weights_RK.new_zeros((min(slab, num_rows - start), num_groups, num_parts, hidden))
        out_PWH = out_XWH[pairs.places_P[first:last]].float()
        out_PWH *= weights_P[first:last, None, None]
        leaf_P = (pairs.rows_P[first:last] - start) * num_groups + group_P[first:last]
        # A row's pairs ascend by expert, and so does what meets in one leaf.
        leaves.view(-1, num_parts * hidden).index_add_(0, leaf_P, out_PWH.flatten(1))
        sums.append(subtrees(leaves.permute(1, 2, 0, 3), placement))
    return torch.cat(sums)


def subtrees(leaves_GWRH: Tensor, placement: Placement) -> Tensor:
    """Add leaves up to this rank's roots: ``[R, S, H]``."""
    sums_GRH = tree_sum(leaves_GWRH, dim=1)
    return tree_sum(sums_GRH).unsqueeze(1) if placement.is_whole else sums_GRH.transpose(0, 1)
