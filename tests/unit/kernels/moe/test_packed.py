import pytest
import torch

from headrace.kernels.linear import Products
from headrace.kernels.moe import packed
from tests.support.kernels_checks import assert_bits_equal
from tests.support.kernels_experts import random_experts, random_rows


@pytest.mark.parametrize("exact", [True, False])
def test_sharing_experts_among_threads_changes_no_bit(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = random_experts(16)
    batch = random_rows(50, 16, dtype=torch.float32)
    alone = experts.bind(products=Products.PACKED, exact=exact)(*batch)
    monkeypatch.setattr(packed, "MIN_SHARED_EXPERTS", 2)
    threads = torch.get_num_threads()
    try:
        for num_threads in (2, 3):
            torch.set_num_threads(num_threads)
            shared = experts.bind(products=Products.PACKED, exact=exact)
            assert_bits_equal(shared(*batch), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("exact", [True, False])
def test_long_prompts_are_computed_in_slabs(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = random_experts(16).bind(products=Products.PACKED, exact=exact)
    batch = random_rows(50, 16, dtype=torch.float32)
    whole = experts(*batch)
    monkeypatch.setattr(packed, "MAX_SLAB_ROWS", 17)
    torch.testing.assert_close(experts(*batch), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 30])
@pytest.mark.parametrize("exact", [True, False])
def test_absent_experts_add_nothing(rows: int, exact: bool) -> None:
    whole = random_experts(16)
    x, ids, weights = random_rows(rows, 16, top_k=4, dtype=torch.float32)
    halves = [
        whole.bind(range(first, first + 8), products=Products.PACKED, exact=exact)(x, ids, weights)
        for first in (0, 8)
    ]
    both = whole.bind(products=Products.PACKED, exact=exact)(x, ids, weights)
    torch.testing.assert_close(halves[0] + halves[1], both, rtol=1e-5, atol=1e-5)


def test_shares_are_of_about_equal_cost_and_cover_all() -> None:
    counts = [(place, 1 + 10 * (place == 0)) for place in range(9)]
    shares = packed._shares(counts, 2)
    assert sum(shares, []) == counts
    assert [len(share) for share in shares] == [4, 5]
    assert sum(packed._shares(counts[:2], 4), []) == counts[:2]


@pytest.mark.parametrize("has_absent", [False, True])
def test_a_row_alone_has_the_bits_that_it_has_among_others(has_absent: bool) -> None:
    experts = random_experts(16).bind(products=Products.PACKED, exact=True)
    x, ids, weights = random_rows(9, 16, top_k=4, dtype=torch.float32)
    if has_absent:
        ids[:, 1] = -1
    together = experts(x, ids, weights)
    for row in range(9):
        one = slice(row, row + 1)
        assert_bits_equal(experts(x[one], ids[one], weights[one]), together[one])
