import pytest
import torch

from headrace.kernels.moe import Placement, leaves, local_id_table
from headrace.kernels.moe.grouping import group_pairs
from tests.support.kernels_checks import assert_bits_equal, random

PLACEMENT = Placement(
    local_ids=local_id_table(range(8), 8),
    group_E=torch.arange(8) // 2,
    num_groups=4,
    num_parts=2,
    is_whole=True,
)


def test_pairs_of_a_group_meet_in_a_leaf_in_ascending_order() -> None:
    ids = torch.tensor([[1, 0, 5], [7, 8, 3]])  # the first two of row 0 share a group; 8 is absent
    pairs = group_pairs(ids, num_experts=8)
    weights, out = random(2, 3), random(pairs.num_padded, 2, 16, seed=1)
    sums = leaves.sum_pairs(out, pairs, weights, PLACEMENT)
    # Pairs in row order, ascending by expert: 0, 1, 5 and 3, 7.
    of_pair = out[pairs.places_P] * weights.flatten()[pairs.slots_P, None, None]
    first = (of_pair[0] + of_pair[1]).sum(0) + of_pair[2].sum(0)
    assert_bits_equal(sums[:, 0], torch.stack((first, of_pair[3].sum(0) + of_pair[4].sum(0))))


def test_without_rows_there_are_no_sums() -> None:
    pairs = group_pairs(torch.zeros((0, 2), dtype=torch.int64), num_experts=8)
    sums = leaves.sum_pairs(torch.zeros(0, 2, 16), pairs, torch.zeros(0, 2), PLACEMENT)
    assert sums.shape == (0, 1, 16)


def test_experts_held_in_part_give_one_subtree_a_group() -> None:
    halves = random(4, 2, 3, 16)
    whole = leaves.subtrees(halves, PLACEMENT)
    part = Placement(
        local_ids=PLACEMENT.local_ids,
        group_E=PLACEMENT.group_E,
        num_groups=4,
        num_parts=2,
        is_whole=False,
    )
    groups = leaves.subtrees(halves, part)
    assert groups.shape == (3, 4, 16)
    assert_bits_equal((groups[:, 0] + groups[:, 1]) + (groups[:, 2] + groups[:, 3]), whole[:, 0])


def test_skipping_empty_leaves_changes_no_bit_of_the_whole_tree() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand((20, 9), generator=generator).argsort(dim=1)[:, :4]
    pairs = group_pairs(ids.clamp(max=8), num_experts=8)
    weights, out = random(20, 4), random(pairs.num_padded, 2, 16, seed=1)
    out[::3] = -0.0
    dense = torch.zeros(4, 2, 20, 16)
    for pair in range(len(pairs.rows_P)):
        group, row = PLACEMENT.group_E[pairs.experts_P[pair]], pairs.rows_P[pair]
        dense[group, :, row] += out[pairs.places_P[pair]] * weights.flatten()[pairs.slots_P[pair]]
    sums = leaves.sum_pairs(out, pairs, weights, PLACEMENT)
    assert_bits_equal(sums, leaves.subtrees(dense, PLACEMENT))


@pytest.mark.parametrize("seed", range(8))
def test_a_single_row_is_added_up_as_among_others(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    experts = torch.randperm(8, generator=generator)[: 1 + seed % 4].sort().values
    ids, weights = experts[None], random(1, len(experts), seed=seed)
    pairs = group_pairs(ids, num_experts=8)
    out = random(pairs.num_padded, 2, 16, seed=seed + 1)
    out[::3] = -0.0
    want = leaves.sum_pairs(out, pairs, weights, PLACEMENT)
    of_row = out[pairs.places_P].transpose(0, 1)
    assert_bits_equal(leaves.sum_row(of_row, experts.tolist(), weights[0], PLACEMENT), want)
