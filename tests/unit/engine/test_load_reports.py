"""A bar needs its first, its last and some steps between."""

from __future__ import annotations

import pytest

from headrace.core.messages import LoadProgress, Message
from headrace.engine.load_reports import NUM_REPORTS, LoadReports


def reported(steps: list[int], total: int) -> list[int]:
    sent: list[Message] = []
    reports = LoadReports(replica="r", rank=1, send=sent.append)
    for done in steps:
        reports(done, total)
    assert all(isinstance(one, LoadProgress) and one.total_bytes == total for one in sent)
    return [one.done_bytes for one in sent if isinstance(one, LoadProgress)]


def test_few_steps_are_all_reported() -> None:
    assert reported([0, 40, 100], 100) == [0, 40, 100]


@pytest.mark.parametrize("num_tensors", [100, 10_000])
def test_many_steps_are_thinned_but_the_last_one_comes(num_tensors: int) -> None:
    done = reported(list(range(num_tensors + 1)), num_tensors)
    assert (done[0], done[-1]) == (0, num_tensors)
    assert len(done) <= NUM_REPORTS + 2


def test_a_rank_with_nothing_to_load_says_so() -> None:
    assert reported([0], 0) == [0]
