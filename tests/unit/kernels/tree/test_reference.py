import pytest
import torch

from headrace.kernels.tree import tree_sum
from tests.support.kernels_checks import assert_bits_equal, random


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12, 16, 64])
def test_sum_is_the_sum(size: int) -> None:
    leaves = random(size, 5, 7)
    torch.testing.assert_close(tree_sum(leaves), leaves.sum(0))


@pytest.mark.parametrize(("size", "parts"), [(4, 2), (4, 4), (6, 2), (12, 4), (16, 8), (64, 16)])
def test_subtrees_of_contiguous_runs_finish_to_the_same_bits(size: int, parts: int) -> None:
    leaves = random(size, 33)
    roots = torch.stack([tree_sum(part) for part in leaves.chunk(parts)])
    assert_bits_equal(tree_sum(roots), tree_sum(leaves))


def test_odd_runs_are_folded_in_order() -> None:
    leaves = random(6, 101)
    left, right = (part[0] + part[1] + part[2] for part in leaves.chunk(2))
    assert_bits_equal(tree_sum(leaves), left + right)


def test_any_axis_can_be_summed() -> None:
    leaves = random(3, 8, 5)
    assert_bits_equal(tree_sum(leaves, dim=1), tree_sum(leaves.transpose(0, 1)))


def test_leaves_are_not_modified() -> None:
    leaves = random(12, 4)
    before = leaves.clone()
    tree_sum(leaves)
    assert_bits_equal(leaves, before)


def test_no_rows_sum_to_no_rows() -> None:
    assert tree_sum(torch.zeros(4, 0, 3)).shape == (0, 3)
