"""Ranks agree on every step, whoever wakes them, and sleep only together."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.comm.group import SingleGroup
from headrace.core.flight import Flight
from headrace.engine.lockstep import Lockstep, StepKind

TIMEOUT_S = 20.0


class MeetingGroup:
    """A group of threads that meet at a barrier: what ``agree`` promises, without memory maps."""

    def __init__(self, rank: int, words: list[int], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.size = len(words)
        self._words = words
        self._barrier = barrier

    def agree(self, word: int) -> list[int]:
        self._words[self.rank] = word
        self._barrier.wait(TIMEOUT_S)
        answer = list(self._words)
        self._barrier.wait(TIMEOUT_S)
        return answer


def test_a_rank_on_its_own_steps_exactly_when_it_has_work() -> None:
    lockstep = Lockstep(SingleGroup(), wake_peers=lambda step: pytest.fail("nobody to wake"))
    wishes = [StepKind.IDLE, StepKind.DECODE, StepKind.IDLE]
    assert [lockstep.next_step(wish) for wish in wishes] == wishes
    assert lockstep.step == 1


def test_the_flight_stands_in_the_step_that_is_being_agreed() -> None:
    flight = Flight()
    lockstep = Lockstep(SingleGroup(), lambda step: None, flight=flight)
    for _ in range(3):
        lockstep.next_step(StepKind.DECODE)
    flight.enter_layer(5)
    lockstep.next_step(StepKind.IDLE)
    assert (flight.step, flight.layer) == (2, 5)


def run_ranks(wishes: list[list[StepKind]]) -> list[list[StepKind]]:
    """Run ranks until each has used up its wishes and sleeps; return the steps each one saw."""
    size = len(wishes)
    words, barrier = [0] * size, threading.Barrier(size)
    mail: list[list[int]] = [[] for _ in range(size)]
    seen: list[list[StepKind]] = [[] for _ in range(size)]

    def wake_others(rank: int) -> Callable[[int], None]:
        def wake(step: int) -> None:
            for other in range(size):
                if other != rank:
                    mail[other].append(step)

        return wake

    locksteps = [Lockstep(MeetingGroup(r, words, barrier), wake_others(r)) for r in range(size)]
    done = threading.Barrier(size)

    def run(rank: int) -> None:
        left = list(wishes[rank])
        lockstep = locksteps[rank]
        # Everybody keeps turning until all have run dry and the group is asleep.
        while any(queues) or lockstep.is_awake or mail[rank]:
            while mail[rank]:
                lockstep.on_wake(mail[rank].pop(0))
            wish = left.pop(0) if left else StepKind.IDLE
            queues[rank] = bool(left) or wish is not StepKind.IDLE
            kind = lockstep.next_step(wish)
            if kind is not StepKind.IDLE:
                seen[rank].append(kind)
        done.wait(TIMEOUT_S)

    queues = [bool(one) for one in wishes]
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), "a rank waits for ever"
    assert len({lockstep.step for lockstep in locksteps}) == 1
    return seen


@pytest.mark.parametrize(
    "wishes",
    [
        [[StepKind.DECODE], []],
        [[], [StepKind.DECODE, StepKind.DECODE], []],
        [[StepKind.DECODE] * 3, [StepKind.DECODE]],
        [[StepKind.DECODE] * 2] * 4,
    ],
    ids=["one wakes one", "middle wakes both", "unequal work", "all wake at once"],
)
def test_all_ranks_see_the_same_steps(wishes: list[list[StepKind]]) -> None:
    seen = run_ranks(wishes)
    assert all(steps == seen[0] for steps in seen)
    assert len(seen[0]) >= max(map(len, wishes))


def test_a_wake_for_a_step_already_taken_is_ignored() -> None:
    barrier = threading.Barrier(1)
    lockstep = Lockstep(MeetingGroup(0, [0], barrier), wake_peers=lambda step: None)
    lockstep.step = 5
    lockstep.on_wake(4)
    assert not lockstep.is_awake
    lockstep.on_wake(5)
    assert lockstep.is_awake
