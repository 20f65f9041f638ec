"""Pairs are sorted by expert across the borders of what a program looks at in one go."""

import torch

from headrace.kernels.gate.triton_group import group_kernel


def test_ranks_go_on_from_one_block_of_pairs_to_the_next() -> None:
    ids = torch.tensor([2, 0, 2, -1, 1, 2, 0, 2, 2, -1, 0], dtype=torch.int32)
    order = torch.full((11,), -9, dtype=torch.int32)
    starts = torch.full((4,), -9, dtype=torch.int32)
    group_kernel[(4,)](ids, order, starts, 11, E=3, BLOCK_P=4, CHAINED=False)
    assert starts.tolist() == [0, 3, 4, 9]
    assert order.tolist() == [1, 6, 10, 4, 0, 2, 5, 7, 8, 3, 9]
