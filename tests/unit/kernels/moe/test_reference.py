import pytest
import torch
from torch import Tensor

from headrace.kernels.linear import Products, choose_products
from headrace.kernels.moe import Experts, reference
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


# Every exact way of multiplying that this machine has.
WAYS = sorted({Products.WIDENED, choose_products(torch.bfloat16, exact=True)})
each_way = pytest.mark.parametrize("products", WAYS)


def whole_sum(rows: tuple[Tensor, Tensor, Tensor], experts: Experts) -> Tensor:
    partials = experts(*rows)
    assert partials.shape[1] == 1
    return partials[:, 0]


@each_way
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_experts", "top_k", "width", "groups", "parts"), CASES)
@pytest.mark.parametrize("rows", [1, 16, 17, 50])
def test_error_is_at_most_twice_the_librarys(
    dtype: torch.dtype,
    num_experts: int,
    top_k: int,
    width: int,
    groups: int,
    parts: int,
    rows: int,
    products: Products,
) -> None:
    # Packed weights are fp16: fp32 ones would lose bits, and choose_products never packs them.
    packed = torch.bfloat16 if products is Products.PACKED else dtype
    experts = random_experts(num_experts, width=width, groups=groups, parts=parts, dtype=packed)
    batch = random_rows(rows, num_experts, top_k=top_k, dtype=dtype)
    assert_as_accurate(
        whole_sum(batch, experts.bind(products=products)),
        reference=experts.reference(*batch, torch.float64),
        library=experts.reference(*batch, dtype),
    )


@each_way
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_experts", "top_k", "width", "groups", "parts"), CASES)
def test_a_row_does_not_depend_on_the_others(
    dtype: torch.dtype,
    num_experts: int,
    top_k: int,
    width: int,
    groups: int,
    parts: int,
    products: Products,
) -> None:
    experts = random_experts(num_experts, width=width, groups=groups, parts=parts).bind(
        products=products
    )
    batch = random_rows(150, num_experts, top_k=top_k, dtype=dtype)
    whole = whole_sum(batch, experts)
    for start, stop in [(0, 1), (1, 3), (20, 36), (20, 37), (0, 100)]:
        part = tuple(tensor[start:stop] for tensor in batch)
        assert_bits_equal(whole_sum(part, experts), whole[start:stop])


@each_way
@pytest.mark.parametrize("rows", [1, 5, 16, 33, 200])
@pytest.mark.parametrize(("expert_ranks", "width_ranks"), [(2, 1), (4, 1), (1, 2), (2, 2), (1, 4)])
def test_subtrees_of_any_sharding_finish_to_the_same_bits(
    rows: int, expert_ranks: int, width_ranks: int, products: Products
) -> None:
    experts = random_experts(64)
    batch = random_rows(rows, 64, dtype=torch.float32)
    per_rank, per_part = 64 // expert_ranks, 4 // width_ranks
    subtrees = [
        torch.stack(
            [
                experts.bind(
                    range(e * per_rank, (e + 1) * per_rank),
                    range(w * per_part, (w + 1) * per_part),
                    products=products,
                )(*batch)
                for w in range(width_ranks)
            ],
            dim=2,
        ).flatten(1, 2)
        for e in range(expert_ranks)
    ]
    assert_bits_equal(
        tree_sum(torch.cat(subtrees, dim=1), dim=1),
        whole_sum(batch, experts.bind(products=products)),
    )


@each_way
@pytest.mark.parametrize("rows", [4, 40])
def test_the_order_of_a_rows_experts_does_not_matter(rows: int, products: Products) -> None:
    experts = random_experts(64).bind(products=products)
    x, ids, weights = random_rows(rows, 64, top_k=8, dtype=torch.float32)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    shuffled = (x, ids[:, order], weights[:, order])
    assert_bits_equal(whole_sum(shuffled, experts), whole_sum((x, ids, weights), experts))


@each_way
@pytest.mark.parametrize("rows", [1, 16, 100])
def test_all_rows_may_go_to_one_expert(rows: int, products: Products) -> None:
    experts = random_experts(16, dtype=torch.bfloat16)
    x, _, weights = random_rows(rows, 16, top_k=1, dtype=torch.float32)
    batch = (x, torch.full((rows, 1), 11), weights)
    assert_as_accurate(
        whole_sum(batch, experts.bind(products=products)),
        reference=experts.reference(*batch, torch.float64),
        library=experts.reference(*batch, torch.float32),
    )


@each_way
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_rows_without_an_expert_here_are_zero(rows: int, products: Products) -> None:
    experts = random_experts(16).bind(range(4, 8), range(2), products=products)
    x, _, weights = random_rows(rows, 16, top_k=3, dtype=torch.bfloat16)
    away = torch.tensor([[3, 8, -1]]).expand(rows, 3)
    assert_bits_equal(experts(x, away, weights), torch.zeros(rows, 4, 48))


@pytest.mark.parametrize("rows", [1, 16, 100])
def test_every_way_to_multiply_gives_the_same_bits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = random_experts(16).bind()
    batch = random_rows(rows, 16, top_k=2, dtype=torch.float32)
    gathered = whole_sum(batch, experts)
    monkeypatch.setattr(reference, "MAX_GATHER_BYTES", 0)
    assert_bits_equal(whole_sum(batch, experts), gathered)
    monkeypatch.setattr(reference, "MAX_SLAB_ROWS", 30)
    assert_bits_equal(whole_sum(batch, experts), gathered)


@pytest.mark.parametrize("products", Products)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_inexact_experts_are_close_to_float64s(products: Products, rows: int) -> None:
    experts = random_experts(16, dtype=torch.bfloat16)
    batch = random_rows(rows, 16, dtype=torch.bfloat16)
    expected = experts.reference(*batch, torch.float64)
    ours = whole_sum(batch, experts.bind(products=products, exact=False))
    torch.testing.assert_close(ours.double(), expected, rtol=0.05, atol=0.05)


@each_way
def test_inputs_are_not_modified(products: Products) -> None:
    experts = random_experts(16).bind(products=products)
    for rows in (3, 40):
        batch = random_rows(rows, 16, dtype=torch.float32)
        before = [tensor.clone() for tensor in batch]
        whole_sum(batch, experts)
        assert all(torch.equal(a, b) for a, b in zip(batch, before, strict=True))
