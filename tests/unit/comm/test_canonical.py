"""The all-reduce of subtree sums: one order of additions, whoever adds."""

import pytest
import torch

from headrace.comm import canonical
from headrace.comm.canonical import all_reduce_root, all_reduce_subtrees
from tests.support.comm_ranks import run_threads

HIDDEN = 5


def leaves(num_tokens, num_leaves):
    """Values whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(num_tokens)
    exponents = torch.randint(-12, 12, (num_tokens, num_leaves, HIDDEN), generator=generator)
    return torch.randn(num_tokens, num_leaves, HIDDEN, generator=generator) * 2.0**exponents


def tree(items):
    if len(items) == 1:
        return items[0]
    half = len(items) // 2
    return tree(items[:half]) + tree(items[half:])


def reduce_contiguous(group, num_tokens, num_leaves, is_two_shot):
    share = num_leaves // group.size
    mine = leaves(num_tokens, num_leaves)[:, group.rank * share : (group.rank + 1) * share]
    return all_reduce_subtrees(group, mine, is_two_shot=is_two_shot)


def reduce_width_split(group, num_tokens, width_ranks, is_two_shot):
    """8 runs of ``width_ranks`` leaves; a rank owns one leaf of every run of its share."""
    whole = leaves(num_tokens, 8 * width_ranks).view(num_tokens, 8, width_ranks, HIDDEN)
    runs = 8 * width_ranks // group.size
    first = group.rank // width_ranks * runs
    mine = whole[:, first : first + runs, group.rank % width_ranks]
    return all_reduce_subtrees(group, mine, width_ranks=width_ranks, is_two_shot=is_two_shot)


def test_the_result_depends_on_the_order_of_additions():
    """Or the tests below would prove nothing."""
    values = leaves(3, 16)
    assert not torch.equal(tree(list(values.unbind(1))), values.cumsum(1)[:, -1])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("is_two_shot", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 33])
def test_all_ranks_and_both_algorithms_give_the_bits_of_one_rank(size, is_two_shot, num_tokens):
    whole = tree(list(leaves(num_tokens, 16).unbind(1)))
    for result in run_threads(size, reduce_contiguous, num_tokens, 16, is_two_shot):
        assert torch.equal(result, whole)


@pytest.mark.parametrize(("size", "width_ranks"), [(2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("is_two_shot", [False, True])
def test_ranks_that_split_the_width_interleave_their_subtrees(size, width_ranks, is_two_shot):
    whole = tree(list(leaves(6, 8 * width_ranks).unbind(1)))
    for result in run_threads(size, reduce_width_split, 6, width_ranks, is_two_shot):
        assert torch.equal(result, whole)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_root_a_rank_is_summed_like_leaves(size):
    def work(group):
        return all_reduce_root(group, leaves(5, size)[:, group.rank])

    whole = tree(list(leaves(5, size).unbind(1)))
    assert all(torch.equal(result, whole) for result in run_threads(size, work))


def test_large_messages_of_several_ranks_take_two_shots(monkeypatch):
    calls = []

    def spy(group, subtrees, *, width_ranks):
        calls.append(group.rank)
        return subtrees[:, 0]

    monkeypatch.setattr(canonical, "_two_shot", spy)
    num_tokens = canonical.ONE_SHOT_MAX_BYTES // (HIDDEN * 4)
    for size, tokens in ((2, num_tokens + 1), (4, num_tokens), (4, num_tokens + 1)):
        run_threads(size, reduce_contiguous, tokens, size, None)
    assert sorted(calls) == [0, 1, 2, 3]
