"""All-reduce of canonical sums: the ranks' subtrees, finished by every rank in the same order.

A sum that a sharding may split is a fixed tree over fixed fp32 partials (docs/numerics.md). A rank
brings the roots of the subtrees that it owns; what is left above them is a full binary tree, since
the ranks are a power of two. No rank ever adds in another order, so the results are equal bit for
bit, on all ranks and for all shardings.

Shape letters:
    T = tokens    N = subtrees of one rank    S = subtrees of all ranks    H = hidden width
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.comm.group import Group
from headrace.kernels.tree import tree_sum

# Up to here every rank reads everybody's subtrees whole: one exchange. Above, a rank finishes its
# share of the tokens and hands out the sums: two exchanges, but size / 2 times fewer bytes.
ONE_SHOT_MAX_BYTES = 128 << 10


def all_reduce_subtrees(
    group: Group, subtrees_TNH: Tensor, *, width_ranks: int = 1, is_two_shot: bool | None = None
) -> Tensor:
    """Finish a canonical sum over all ranks of a group.

    Args:
        group: A power of two of ranks.
        subtrees_TNH: fp32 roots of this rank's subtrees, in leaf order; N a power of two, and T,
            N, H equal on all ranks. Read only.
        width_ranks: Neighbouring ranks that own the same leaf runs, each its own part of every
            run (experts whose width is split): subtree n of these ranks are neighbours in the
            tree. 1 when a rank's subtrees are contiguous.
        is_two_shot: Overrules the choice by size.

    Returns:
        fp32 ``[T, H]``, bit-equal on all ranks and for either algorithm. May share memory with the
        argument in a group of one.

    Cost:
        One-shot reads ``(size - 1) * T * N * H * 4`` bytes a rank; two-shot about
        ``T * (N + 1) * H * 4``.
    """
    if group.size == 1:
        return tree_sum(subtrees_TNH, dim=1)
    if is_two_shot is None:
        is_two_shot = group.size > 2 and subtrees_TNH.nbytes > ONE_SHOT_MAX_BYTES
    if not is_two_shot:
        return tree_sum(_in_leaf_order(group.all_gather(subtrees_TNH), width_ranks), dim=1)
    return _two_shot(group, subtrees_TNH, width_ranks=width_ranks)


def all_reduce_root(group: Group, root_TH: Tensor) -> Tensor:
    """Finish a canonical sum of which every rank owns one subtree (attention output, dense MLP).

    Args:
        group: A power of two of ranks.
        root_TH: fp32 root of this rank's subtree. Read only.

    Returns:
        fp32 ``[T, H]`` as ``all_reduce_subtrees``; ``root_TH`` itself in a group of one.
    """
    return root_TH if group.size == 1 else all_reduce_subtrees(group, root_TH.unsqueeze(1))


def _two_shot(group: Group, subtrees_TNH: Tensor, *, width_ranks: int) -> Tensor:
    num_tokens, _, hidden = subtrees_TNH.shape
    # Equal shares, the last ones short: the second exchange gathers equal shapes.
    share = -(-num_tokens // group.size)
    parts = [subtrees_TNH[r * share : (r + 1) * share] for r in range(group.size)]
    mine = torch.stack(group.all_to_all(parts))
    summed_RH = tree_sum(_in_leaf_order(mine, width_ranks), dim=1)
    padded_RH = summed_RH.new_zeros((share, hidden))
    padded_RH[: summed_RH.shape[0]] = summed_RH
    return group.all_gather(padded_RH).view(-1, hidden)[:num_tokens]


def _in_leaf_order(gathered: Tensor, width_ranks: int) -> Tensor:
    """Turn ``[rank, T, N, H]`` into ``[T, S, H]`` with the subtrees in leaf order."""
    num_ranks, num_tokens, num_subtrees, hidden = gathered.shape
    split = gathered.view(num_ranks // width_ranks, width_ranks, *gathered.shape[1:])
    ordered = split.permute(2, 0, 3, 1, 4)
    return ordered.reshape(num_tokens, num_ranks * num_subtrees, hidden)
