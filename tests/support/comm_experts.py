"""Toy experts with exact row independence, and the canonical sum written as plainly as can be.

Expert e scales each column: its width part w gives ``x * scales[e, w]``. No matrix product, so a
row's bits cannot depend on the other rows, and any difference is the exchange's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_EXPERTS = 32
NUM_GROUPS = 16
NUM_PARTS = 4
HIDDEN = 24


@dataclass(frozen=True)
class Routed:
    """Tokens and their routing, as the gate would give them."""

    x: Tensor
    ids: Tensor
    weights: Tensor

    def rows(self, start: int, stop: int) -> "Routed":
        return Routed(self.x[start:stop], self.ids[start:stop], self.weights[start:stop])


def scales() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(NUM_EXPERTS, NUM_PARTS, HIDDEN, generator=generator)


def routed(num_tokens: int, *, dtype: torch.dtype, seed: int, num_topk: int = 4) -> Routed:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, HIDDEN, generator=generator).to(dtype)
    gate = torch.rand(num_tokens, NUM_EXPERTS, generator=generator)
    weights, ids = gate.topk(num_topk, dim=1)
    return Routed(x, ids, weights)


def sent_to(tokens: Routed, experts: list[int]) -> Routed:
    """Route every token to the same experts."""
    ids = torch.tensor(experts).expand(tokens.x.shape[0], -1)
    return Routed(tokens.x, ids, tokens.weights[:, : len(experts)])


def _leaf(row: Tensor, token: Routed, group: int, part: int) -> Tensor:
    total = torch.zeros(HIDDEN)
    per_group = NUM_EXPERTS // NUM_GROUPS
    weight_of = dict(zip(token.ids.tolist(), token.weights, strict=True))
    for expert in range(group * per_group, (group + 1) * per_group):
        if expert in weight_of:
            total = total + weight_of[expert] * (row * scales()[expert, part])
    return total


def _tree(leaves: list[Tensor]) -> Tensor:
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return _tree(leaves[:half]) + _tree(leaves[half:])


def canonical(tokens: Routed) -> Tensor:
    """Token by token, leaf by leaf: what every sharding must equal."""
    sums = []
    for t in range(tokens.x.shape[0]):
        token = Routed(tokens.x[t], tokens.ids[t], tokens.weights[t])
        row = token.x.float()
        groups = [[_leaf(row, token, g, w) for w in range(NUM_PARTS)] for g in range(NUM_GROUPS)]
        sums.append(_tree([_tree(parts) for parts in groups]))
    return torch.stack(sums) if sums else torch.zeros(0, HIDDEN)


def local_experts(rank: int, num_ranks: int, *, width_ranks: int = 1) -> Callable[..., Tensor]:
    """This rank's experts as the exchanges want them; whole subtrees, or one per group."""
    num_parts = NUM_PARTS // width_ranks
    groups = NUM_GROUPS * width_ranks // num_ranks
    first_group = rank // width_ranks * groups
    parts = slice(rank % width_ranks * num_parts, (rank % width_ranks + 1) * num_parts)
    per_group = NUM_EXPERTS // NUM_GROUPS

    def run(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        leaves = torch.zeros(x.shape[0], groups, num_parts, HIDDEN)
        for expert in range(first_group * per_group, (first_group + groups) * per_group):
            rows, choice = (ids == expert).nonzero(as_tuple=True)
            output = x[rows].float().unsqueeze(1) * scales()[expert, parts]
            leaves[rows, expert // per_group - first_group] += (
                weights[rows, choice].view(-1, 1, 1) * output
            )
        level = leaves.flatten(1, 2)
        wanted = 1 if width_ranks == 1 else groups
        while level.shape[1] > wanted:
            level = level[:, 0::2] + level[:, 1::2]
        return level

    return run
