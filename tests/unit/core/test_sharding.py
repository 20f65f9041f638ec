"""What can be sharded how, decided before any weight is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ShardingError
from headrace.core.sharding import Role, Sharding, check_sharding, split_range


@pytest.mark.parametrize(
    ("role", "sharding"),
    [
        (Role.PREFILL, Sharding()),
        (Role.PREFILL, Sharding(tp=4, ep=4)),
        (Role.PREFILL, Sharding(tp=4, ep=2)),
        (Role.DECODE, Sharding(dp=4, ep=4)),
        (Role.MONO, Sharding()),
    ],
)
def test_possible_shardings_pass(role: Role, sharding: Sharding) -> None:
    check_sharding(sharding, role, num_kv_heads=4, num_experts=16)


@pytest.mark.parametrize(
    ("role", "sharding", "message"),
    [
        (Role.PREFILL, Sharding(tp=0), "sizes start at 1"),
        (Role.PREFILL, Sharding(dp=2), "dp=1"),
        (Role.PREFILL, Sharding(tp=8, ep=8), "does not divide the model's 4 KV heads"),
        (Role.PREFILL, Sharding(tp=2, ep=4), "ep=4 does not divide tp=2"),
        (Role.DECODE, Sharding(tp=2, dp=2, ep=4), "use dp=4,ep=4 instead"),
        (Role.DECODE, Sharding(dp=2, ep=1), "expected ep=2"),
        (Role.DECODE, Sharding(dp=3, ep=3), "does not divide the model's 16 experts"),
    ],
)
def test_impossible_shardings_say_why(role: Role, sharding: Sharding, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        check_sharding(sharding, role, num_kv_heads=4, num_experts=16)


def test_tp_must_be_a_power_of_two_even_if_it_divides_the_heads() -> None:
    with pytest.raises(ShardingError, match="power of two"):
        check_sharding(Sharding(tp=3, ep=1), Role.PREFILL, num_kv_heads=6, num_experts=0)


def test_a_dense_model_has_no_experts_to_split() -> None:
    check_sharding(Sharding(dp=2, ep=1), Role.DECODE, num_kv_heads=4, num_experts=0)
    with pytest.raises(ShardingError, match="dense model"):
        check_sharding(Sharding(dp=2, ep=2), Role.DECODE, num_kv_heads=4, num_experts=0)


@given(st.integers(1, 40), st.integers(1, 40))
def test_parts_cover_every_item_and_share_only_when_there_are_more_parts(
    total: int, parts: int
) -> None:
    ranges = [split_range(total, parts, index) for index in range(parts)]
    assert {item for part in ranges for item in part} == set(range(total))
    if parts <= total:
        assert sum(map(len, ranges)) == total
    else:
        assert all(len(part) == 1 for part in ranges)
