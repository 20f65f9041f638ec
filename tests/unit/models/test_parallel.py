import torch
from torch import Tensor

from headrace.kernels.tree import tree_sum
from headrace.models.parallel import LocalExchange, no_reduce
from tests.support.kernels_checks import assert_bits_equal, random


def test_one_ranks_subtree_is_the_whole_sum() -> None:
    partial = random(3, 5)
    assert no_reduce(partial) is partial


def test_local_experts_get_every_token_and_their_subtrees_are_finished() -> None:
    x, ids, weights = random(3, 5), torch.tensor([[0, 1]] * 3), random(3, 2)
    subtrees = random(3, 4, 5, seed=1)
    seen: list[tuple[Tensor, ...]] = []

    def local_experts(*rows: Tensor) -> Tensor:
        seen.append(rows)
        return subtrees

    out = LocalExchange().run(x, ids, weights, local_experts)
    assert seen == [(x, ids, weights)]
    assert_bits_equal(out, tree_sum(subtrees, dim=1))
