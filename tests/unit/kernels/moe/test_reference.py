import pytest
import torch
from torch import Tensor

from headrace.kernels.moe import ExpertWeights, expert_partials, pack_experts, reference
from headrace.kernels.tree import tree_sum
from tests.support.kernels_checks import DTYPES, assert_as_accurate, assert_bits_equal
from tests.support.kernels_experts import random_experts, random_rows

CASES = [
    # experts, top_k, width, groups, parts
    (16, 4, 64, 16, 4),
    (64, 6, 64, 16, 4),
    (8, 2, 96, 8, 1),
    (12, 3, 48, 4, 1),
]


def whole_sum(rows: tuple[Tensor, Tensor, Tensor], experts: ExpertWeights) -> Tensor:
    partials = expert_partials(*rows, experts)
    assert partials.shape[1] == 1
    return partials[:, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_experts", "top_k", "width", "groups", "parts"), CASES)
@pytest.mark.parametrize("rows", [1, 16, 17, 50])
def test_error_is_at_most_twice_the_librarys(
    dtype: torch.dtype, num_experts: int, top_k: int, width: int, groups: int, parts: int, rows: int
) -> None:
    experts = random_experts(num_experts, width=width, groups=groups, parts=parts, dtype=dtype)
    batch = random_rows(rows, num_experts, top_k=top_k, dtype=dtype)
    assert_as_accurate(
        whole_sum(batch, experts.pack()),
        reference=experts.reference(*batch, torch.float64),
        library=experts.reference(*batch, dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_experts", "top_k", "width", "groups", "parts"), CASES)
def test_a_row_does_not_depend_on_the_others(
    dtype: torch.dtype, num_experts: int, top_k: int, width: int, groups: int, parts: int
) -> None:
    experts = random_experts(num_experts, width=width, groups=groups, parts=parts).pack()
    batch = random_rows(150, num_experts, top_k=top_k, dtype=dtype)
    whole = whole_sum(batch, experts)
    for start, stop in [(0, 1), (1, 3), (20, 36), (20, 37), (0, 100)]:
        part = tuple(tensor[start:stop] for tensor in batch)
        assert_bits_equal(whole_sum(part, experts), whole[start:stop])


@pytest.mark.parametrize("rows", [1, 5, 16, 33, 200])
@pytest.mark.parametrize(("expert_ranks", "width_ranks"), [(2, 1), (4, 1), (1, 2), (2, 2), (1, 4)])
def test_subtrees_of_any_sharding_finish_to_the_same_bits(
    rows: int, expert_ranks: int, width_ranks: int
) -> None:
    experts = random_experts(64)
    batch = random_rows(rows, 64, dtype=torch.float32)
    per_rank, per_part = 64 // expert_ranks, 4 // width_ranks
    subtrees = [
        torch.stack(
            [
                expert_partials(
                    *batch,
                    experts.pack(
                        range(e * per_rank, (e + 1) * per_rank),
                        range(w * per_part, (w + 1) * per_part),
                    ),
                )
                for w in range(width_ranks)
            ],
            dim=2,
        ).flatten(1, 2)
        for e in range(expert_ranks)
    ]
    assert_bits_equal(tree_sum(torch.cat(subtrees, dim=1), dim=1), whole_sum(batch, experts.pack()))


@pytest.mark.parametrize("rows", [4, 40])
def test_the_order_of_a_rows_experts_does_not_matter(rows: int) -> None:
    experts = random_experts(64).pack()
    x, ids, weights = random_rows(rows, 64, top_k=8, dtype=torch.float32)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    shuffled = (x, ids[:, order], weights[:, order])
    assert_bits_equal(whole_sum(shuffled, experts), whole_sum((x, ids, weights), experts))


@pytest.mark.parametrize("rows", [1, 16, 100])
def test_all_rows_may_go_to_one_expert(rows: int) -> None:
    experts = random_experts(16, dtype=torch.float32)
    x, _, weights = random_rows(rows, 16, top_k=1, dtype=torch.float32)
    batch = (x, torch.full((rows, 1), 11), weights)
    assert_as_accurate(
        whole_sum(batch, experts.pack()),
        reference=experts.reference(*batch, torch.float64),
        library=experts.reference(*batch, torch.float32),
    )


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_rows_without_an_expert_here_are_zero(rows: int) -> None:
    experts = random_experts(16).pack(range(4, 8), range(2))
    x, _, weights = random_rows(rows, 16, top_k=3, dtype=torch.bfloat16)
    away = torch.tensor([[3, 8, -1]]).expand(rows, 3)
    assert_bits_equal(expert_partials(x, away, weights, experts), torch.zeros(rows, 4, 48))


@pytest.mark.parametrize("rows", [1, 16, 100])
def test_every_way_to_multiply_gives_the_same_bits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = random_experts(16).pack()
    batch = random_rows(rows, 16, top_k=2, dtype=torch.float32)
    gathered = whole_sum(batch, experts)
    monkeypatch.setattr(reference, "MAX_GATHER_BYTES", 0)
    assert_bits_equal(whole_sum(batch, experts), gathered)
    monkeypatch.setattr(reference, "MAX_SLAB_ROWS", 30)
    monkeypatch.setattr(reference, "MAX_LEAF_ELEMENTS", 1)
    assert_bits_equal(whole_sum(batch, experts), gathered)


def test_inexact_experts_multiply_in_their_own_dtype() -> None:
    experts = random_experts(16, dtype=torch.bfloat16)
    packed = pack_experts(
        experts.gate_up,
        experts.down,
        experts=range(16),
        num_experts=16,
        num_groups=16,
        num_parts=4,
        is_whole=True,
    )
    for rows in (3, 40):
        batch = random_rows(rows, 16, dtype=torch.bfloat16)
        expected = experts.reference(*batch, torch.float64)
        torch.testing.assert_close(
            whole_sum(batch, packed).double(), expected, rtol=0.05, atol=0.05
        )


def test_inputs_are_not_modified() -> None:
    experts = random_experts(16).pack()
    for rows in (3, 40):
        batch = random_rows(rows, 16, dtype=torch.float32)
        before = [tensor.clone() for tensor in batch]
        whole_sum(batch, experts)
        assert all(torch.equal(a, b) for a, b in zip(batch, before, strict=True))
