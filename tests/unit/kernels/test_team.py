import threading

import pytest
import torch

from headrace.kernels.team import Team, team_of


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_every_task_runs_once_and_side_by_side(num_threads: int) -> None:
    team = Team(num_threads)
    barrier = threading.Barrier(num_threads, timeout=60)
    threads: list[int] = []

    def task() -> None:
        barrier.wait()
        threads.append(threading.get_ident())

    for _ in range(3):
        threads.clear()
        team.run([task] * num_threads)
        assert len(set(threads)) == num_threads
        assert threading.get_ident() in threads


def test_what_a_task_raises_comes_out_after_all_have_ended() -> None:
    ended = threading.Event()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Team(2).run([ended.set, fail])
    assert ended.is_set()
    team = Team(2)
    ended.clear()
    with pytest.raises(ValueError, match="no"):
        team.run([fail, ended.set])
    assert ended.is_set()
    team.run([ended.set, ended.set])


@torch.inference_mode()
def test_helpers_may_write_tensors_of_inference_mode() -> None:
    out = torch.zeros(2)
    Team(2).run([lambda: out[:1].add_(1), lambda: out[1:].add_(2)])
    assert out.tolist() == [1, 2]


def test_several_threads_share_a_team() -> None:
    team, counts = team_of(2), [0] * 8

    def add(index: int) -> None:
        counts[index] += 1

    def call(index: int) -> None:
        for _ in range(50):
            team.run([lambda: add(2 * index), lambda: add(2 * index + 1)])

    callers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert counts == [50] * 8
    assert team_of(2) is team
