"""Adding up what experts computed: weighted outputs to leaves, leaves to a rank's subtrees.

Shape letters:
    R = token rows   K = experts per token   E = experts held   H = hidden width
    W = width parts held   P = (row, expert) pairs whose expert is held
    X = rows of a padded arrangement of the pairs   G = expert groups held
    N = nodes of the tree with a leaf under them
    S = subtrees: 1 when the experts are held in full, else G
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headrace.kernels.moe.grouping import Pairs
from headrace.kernels.tree import tree_sum


@dataclass(frozen=True, kw_only=True)
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

    @cached_property
    def groups(self) -> list[int]:
        """``group_E`` as numbers."""
        groups: list[int] = self.group_E.tolist()
        return groups

    @property
    def holds_all(self) -> bool:
        """Whether all experts of the model are held."""
        return self.num_experts == self.local_ids.shape[0] - 1

    @property
    def num_experts(self) -> int:
        """E, the experts held."""
        return self.group_E.shape[0]


def sum_pairs(out_XWH: Tensor, pairs: Pairs, weights_RK: Tensor, placement: Placement) -> Tensor:
    """Weigh each pair's output and add up: the rank's subtrees ``[R, S, H]``, fp32.

    A row meets few of the groups, and a leaf without an expert is +0: only the nodes of the tree
    that have a leaf under them are added. Adding to +0 first, as the whole tree does, changes
    nothing but the sign of a zero, which the last addition settles.

    Args:
        out_XWH: Down products in the pairs' padded arrangement. Not modified.
        pairs: Where each pair's row stands.
        weights_RK: fp32 gate weights. Not modified.
        placement: The rank's experts; G a power of two.
    """
    num_groups = placement.num_groups
    out_PWH = out_XWH.index_select(0, pairs.places_P).float()
    out_PWH *= weights_RK.flatten()[pairs.slots_P, None, None]
    # Pairs ascend by row and expert, and so do their leaves; what meets in one is added in order.
    keys_P = pairs.rows_P * num_groups + placement.group_E[pairs.experts_P]
    keys_N, leaves_NWH = _merge(keys_P, out_PWH)
    sums_NH = tree_sum(leaves_NWH, dim=1)
    if not placement.is_whole:
        return _spread(keys_N, sums_NH, len(weights_RK) * num_groups).unflatten(0, (-1, num_groups))
    for _ in range(num_groups.bit_length() - 1):
        keys_N, sums_NH = _merge(keys_N >> 1, sums_NH)
    return _spread(keys_N, sums_NH, len(weights_RK)).unsqueeze(1)


def sum_row(out_WKH: Tensor, experts: list[int], weights_K: Tensor, placement: Placement) -> Tensor:
    """Do what ``sum_pairs`` does for a single row, with nothing to sort: ``[1, 1, H]``.

    Args:
        out_WKH: Down products of the row's experts. Not modified.
        experts: Their places among those held, ascending; all are here, and held in full.
        weights_K: fp32 gate weights, in the same order.
        placement: The rank's experts.
    """
    out_KWH = out_WKH.transpose(0, 1) * weights_K[:, None, None]
    groups = placement.groups
    leaves: dict[int, Tensor] = {}
    for expert, out_WH in zip(experts, out_KWH.unbind(), strict=True):
        _add(leaves, groups[expert], out_WH)
    sums_NH = tree_sum(torch.stack(list(leaves.values())), dim=1)
    nodes = dict(zip(leaves, sums_NH.unbind(), strict=True))
    for _ in range(placement.num_groups.bit_length() - 1):
        above: dict[int, Tensor] = {}
        for key, sum_H in nodes.items():
            _add(above, key >> 1, sum_H)
        nodes = above
    (root_H,) = nodes.values()
    # A sum of -0 becomes +0, as adding +0 makes it.
    return (root_H + 0.0)[None, None]


def _add(sums: dict[int, Tensor], key: int, value: Tensor) -> None:
    sums[key] = sums[key] + value if key in sums else value


def _merge(keys_N: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Add neighbours of equal key, in order."""
    merged_M, counts_M = torch.unique_consecutive(keys_N, return_counts=True)
    if len(merged_M) == len(keys_N):
        return keys_N, values
    firsts_M = counts_M.cumsum(0) - counts_M
    sums = values.index_select(0, firsts_M)
    # Few share a key, and so a turn for each of them beats one addition after the other.
    for turn in range(1, int(counts_M.max())):
        rows = (counts_M > turn).nonzero().squeeze(1)
        more = values.index_select(0, firsts_M[rows] + turn)
        sums.index_copy_(0, rows, more.add_(sums.index_select(0, rows)))
    return merged_M, sums


def _spread(keys_N: Tensor, sums_NH: Tensor, num_places: int) -> Tensor:
    """Put sums at their keys, +0 elsewhere; a sum of -0 becomes +0, as adding +0 makes it."""
    out_RH = sums_NH.new_zeros((num_places, sums_NH.shape[1]))
    return out_RH.index_copy_(0, keys_N, sums_NH + 0.0)


def subtrees(leaves_GWRH: Tensor, placement: Placement) -> Tensor:
    """Add leaves up to this rank's roots: ``[R, S, H]``."""
    sums_GRH = tree_sum(leaves_GWRH, dim=1)
    return tree_sum(sums_GRH).unsqueeze(1) if placement.is_whole else sums_GRH.transpose(0, 1)
