from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import IllegalPlanError
from headrace.transfer.owners import choose_owners, expected_bytes, expected_bytes_by_source
from tests.support.transfer_layouts import make_schema, split_layouts


@given(
    heads=st.integers(1, 9),
    ranks=st.integers(1, 16),
    targets=st.integers(1, 6),
    seed=st.integers(0, 1 << 62),
)
def test_each_head_of_each_destination_has_one_holder(
    heads: int, ranks: int, targets: int, seed: int
) -> None:
    schemas = [make_schema(heads)]
    sources = split_layouts(ranks, schemas=schemas)
    wanted = split_layouts(targets, schemas=schemas)
    owners = choose_owners(sources, wanted, seed=seed)
    for target, layout in enumerate(wanted):
        sent = [h for (_, t), some in owners.items() if t == target for h in some]
        assert sorted(sent) == list(layout.heads)
    for (source, _), some in owners.items():
        assert set(some) <= set(sources[source].heads)
        assert some == sorted(some)


def test_seeds_spread_sessions_over_replicas() -> None:
    schemas = [make_schema(2)]
    sources, targets = split_layouts(8, schemas=schemas), split_layouts(1, schemas=schemas)
    chosen = Counter(
        source for seed in range(400) for source, _ in choose_owners(sources, targets, seed=seed)
    )
    assert set(chosen) == set(range(8))
    assert min(chosen.values()) > 60  # 100 each on average


def test_replicas_share_several_destinations_evenly() -> None:
    schemas = [make_schema(1)]
    sources = split_layouts(4, schemas=schemas)
    targets = split_layouts(4, schemas=schemas)
    owners = choose_owners(sources, targets, seed=3)
    assert sorted(source for source, _ in owners) == [0, 1, 2, 3]


def test_the_choice_is_part_of_the_protocol() -> None:
    # Both sides compute it: a change here is a change of the wire protocol's version.
    sources, targets = split_layouts(8), split_layouts(1)
    chosen = [sorted(s for s, _ in choose_owners(sources, targets, seed=n)) for n in range(4)]
    assert chosen == [[1, 3, 5, 6], [1, 3, 5, 6], [1, 3, 4, 7], [1, 3, 5, 7]]


def test_a_head_that_nobody_holds_is_refused() -> None:
    sources = split_layouts(4)
    with pytest.raises(IllegalPlanError, match=r"KV head 2.*3 source ranks.*held: 0, 1, 3"):
        choose_owners([sources[0], sources[1], sources[3]], split_layouts(1), seed=0)


def test_expected_bytes_are_the_formula() -> None:
    schemas = [make_schema(4, 128, "bfloat16")] * 94
    (target,) = split_layouts(1, schemas=schemas, num_blocks=47, block_size=128)
    assert expected_bytes(target, start=100, stop=5999) == 5899 * 94 * 2 * 4 * 128 * 2
    assert expected_bytes(target, start=9, stop=9) == 0


def test_a_rank_whose_replica_sends_owes_nothing() -> None:
    owed = expected_bytes_by_source(split_layouts(8), split_layouts(1)[0], start=0, stop=10, seed=5)
    assert set(owed) == set(range(8))
    assert Counter(owed.values()) == {0: 4, 10 * 2 * 2 * 16: 4}
