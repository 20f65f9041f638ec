"""Free ids stay maximal runs, and prompts get the fewest runs there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kvcache.free_runs import FreeRuns


def num_runs(block_ids: list[int]) -> int:
    return 1 + sum(b != a + 1 for a, b in zip(block_ids, block_ids[1:], strict=False))


def take_all_but(runs: FreeRuns, *, size: int, free: list[int]) -> None:
    """Leave exactly ``free`` of ``range(size)`` in the set."""
    runs.take(size)
    for block_id in free:
        runs.add(block_id)


def test_a_fresh_set_hands_out_one_run():
    runs = FreeRuns(8)
    assert runs.take(5) == [0, 1, 2, 3, 4]
    assert len(runs) == 3


def test_the_shortest_run_that_fits_is_used_so_that_long_runs_stay_whole():
    runs = FreeRuns(16)
    take_all_but(runs, size=16, free=[0, 1, 2, 3, 4, 8, 9, 12, 13, 14])
    assert runs.take(2) == [8, 9]
    assert runs.take(3) == [12, 13, 14]
    assert runs.take(5) == [0, 1, 2, 3, 4]


def test_the_longest_run_goes_first_when_no_run_is_long_enough():
    runs = FreeRuns(16)
    take_all_but(runs, size=16, free=[0, 4, 5, 6, 10, 11])
    assert runs.take(5) == [4, 5, 6, 10, 11]


def test_ids_put_back_in_any_order_join_to_one_run():
    runs = FreeRuns(6)
    runs.take(6)
    for block_id in (4, 0, 2, 5, 1, 3):
        runs.add(block_id)
    assert runs.take(6) == [0, 1, 2, 3, 4, 5]


def test_an_empty_set_gives_nothing_when_nothing_is_asked():
    assert FreeRuns(0).take(0) == []


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@given(data=st.data())
def test_takes_and_adds_agree_with_a_plain_set(size: int, data: st.DataObject):
    runs, model = FreeRuns(size), set(range(size))
    for _ in range(data.draw(st.integers(1, 12))):
        taken = runs.take(data.draw(st.integers(0, len(model))))
        assert len(set(taken)) == len(taken)
        assert model >= set(taken)
        model -= set(taken)
        absent = sorted(set(range(size)) - model)
        for block_id in data.draw(st.lists(st.sampled_from(absent), unique=True)) if absent else []:
            runs.add(block_id)
            model.add(block_id)
        assert runs.ids() == model
        assert len(runs) == len(model)


@given(free=st.sets(st.integers(0, 29)), data=st.data())
def test_no_other_choice_of_ids_needs_fewer_runs(free: set[int], data: st.DataObject):
    runs = FreeRuns(30)
    take_all_but(runs, size=30, free=sorted(free))
    lengths = sorted((len(run) for run in maximal_runs(free)), reverse=True)
    wanted = data.draw(st.integers(0, len(free)))
    taken = runs.take(wanted)
    fewest = next(k for k in range(len(lengths) + 1) if sum(lengths[:k]) >= wanted)
    assert (num_runs(taken) if taken else 0) == fewest


def maximal_runs(ids: set[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for block_id in sorted(ids):
        if found and found[-1][-1] + 1 == block_id:
            found[-1].append(block_id)
        else:
            found.append([block_id])
    return found
