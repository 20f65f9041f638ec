import pytest
import torch

from headrace.kernels.moe.grouping import group_pairs, local_id_table


def test_local_ids_count_from_the_first_expert_held() -> None:
    table = local_id_table(range(4, 8), 12)
    assert table[torch.tensor([0, 3, 4, 7, 8, 11, -1])].tolist() == [4, 4, 0, 3, 4, 4, 4]


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
@pytest.mark.parametrize("spread", [1, 3, 8])
def test_every_held_pair_has_a_place_among_its_experts_rows(rows: int, spread: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.stack([torch.randperm(spread + 2, generator=generator)[:3] for _ in range(rows)])
    ids = ids.clamp(max=spread)
    pairs = group_pairs(ids, num_experts=spread)
    assert len(pairs.rows_P) == int((ids < spread).sum())
    assert torch.equal(ids.flatten()[pairs.slots_P], pairs.experts_P)
    assert torch.equal(pairs.rows_P, pairs.slots_P // 3)
    assert len(set(pairs.places_P.tolist())) == len(pairs.rows_P)
    starts = torch.cat((torch.zeros(1), pairs.ends_E[:-1]))
    assert ((pairs.ends_E - starts) % 16 == 0).all()
    assert (pairs.places_P >= starts[pairs.experts_P]).all()
    assert (pairs.places_P < pairs.ends_E[pairs.experts_P]).all()
    assert pairs.num_padded == pairs.ends_E[-1]


def test_a_rows_pairs_come_in_ascending_expert_order() -> None:
    pairs = group_pairs(torch.tensor([[3, 1, 0], [2, 4, 1]]), num_experts=4)
    assert pairs.experts_P.tolist() == [0, 1, 3, 1, 2]
    assert pairs.rows_P.tolist() == [0, 0, 0, 1, 1]
    assert pairs.slots_P.tolist() == [2, 1, 0, 5, 3]
    assert pairs.places_P.tolist() == [0, 16, 48, 17, 32]


def test_no_pair_may_be_held() -> None:
    pairs = group_pairs(torch.full((5, 2), 4), num_experts=4)
    assert (len(pairs.rows_P), pairs.num_padded) == (0, 0)
    assert group_pairs(torch.zeros(0, 2, dtype=torch.int64), num_experts=4).num_padded == 0
