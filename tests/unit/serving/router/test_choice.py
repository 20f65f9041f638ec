"""Where requests go: pure, deterministic, never to the dead."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.router.choice import (
    Candidate,
    Health,
    choose_decode_rank,
    choose_prefill_replica,
)

candidates = st.lists(
    st.builds(
        Candidate,
        replica=st.sampled_from(["a", "b"]),
        rank=st.integers(0, 5),
        health=st.sampled_from(Health),
        in_flight=st.integers(0, 4),
        num_waiting=st.integers(0, 3),
        num_running=st.integers(0, 3),
        free_blocks=st.integers(0, 9),
    ),
    max_size=6,
    unique_by=lambda one: (one.replica, one.rank),
)


@given(candidates)
def test_the_choice_is_alive_healthiest_and_least_loaded(ranks: list[Candidate]) -> None:
    choice = choose_decode_rank(ranks)
    alive = [one for one in ranks if one.health is not Health.DEAD]
    assert (choice.index is None) == (not alive)
    if choice.index is None:
        assert choice.reason == "no decode rank is alive"
        return
    chosen = ranks[choice.index]
    assert chosen.health == min(one.health for one in alive)
    assert chosen.load == min(one.load for one in alive if one.health == chosen.health)
    assert f"{chosen.replica}.{chosen.rank}" in choice.reason


@given(candidates, st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_the_candidates(
    ranks: list[Candidate], random: object
) -> None:
    shuffled = sorted(ranks, key=lambda _: random.random())  # type: ignore[attr-defined]
    first, second = choose_decode_rank(ranks), choose_decode_rank(shuffled)
    assert first.reason == second.reason
    if first.index is not None and second.index is not None:
        assert ranks[first.index] == shuffled[second.index]


def test_a_burst_spreads_before_any_heartbeat_tells_of_it() -> None:
    counts = [0, 0, 0]
    for _ in range(9):
        ranks = [Candidate(replica="d", rank=i, in_flight=n) for i, n in enumerate(counts)]
        index = choose_decode_rank(ranks).index
        assert index is not None
        counts[index] += 1
    assert counts == [3, 3, 3]


def test_load_that_another_edge_sent_counts_by_its_heartbeat() -> None:
    busy = Candidate(replica="p0", num_waiting=2, num_running=3, free_blocks=50)
    idle = Candidate(replica="p1", in_flight=1, free_blocks=10)
    choice = choose_prefill_replica([busy, idle])
    assert choice.index == 1
    assert choice.reason == "p1.0: 1 sequences, 10 free blocks"


def test_among_equally_loaded_the_most_free_blocks_win() -> None:
    few, many = Candidate(replica="p0", free_blocks=3), Candidate(replica="p1", free_blocks=4)
    assert choose_prefill_replica([few, many]).index == 1


def test_a_late_replica_is_the_last_resort_and_says_so() -> None:
    late = Candidate(replica="p0", health=Health.LATE)
    good = Candidate(replica="p1", in_flight=9)
    assert choose_prefill_replica([late, good]).index == 1
    assert "late but nothing better" in choose_prefill_replica([late]).reason


def test_no_prefill_replica_is_an_answer_too() -> None:
    dead = Candidate(replica="p0", health=Health.DEAD)
    assert choose_prefill_replica([dead]).index is None
    assert choose_prefill_replica([]).reason == "no prefill replica is alive"
