"""The timer of a real device: recorded calls run in every replay, in order, captured or not."""

import pytest
import torch

from headrace.bench.device.timing import CudaTimer


@pytest.mark.parametrize("captures", [True, False])
def test_a_replay_runs_every_call_once(captures):
    counts = torch.zeros(3, dtype=torch.int64, device="cuda")
    calls = [lambda index=index: counts[index].add_(1) for index in (0, 1, 1, 2)]
    timer = CudaTimer()
    replay = timer.record(calls, captures=captures)
    counts.zero_()
    times_us = timer.time_us([replay, replay, replay])
    assert counts.tolist() == [3, 6, 3]
    assert len(times_us) == 3
    assert all(time_us > 0 for time_us in times_us)


def test_results_of_calls_need_not_be_kept():
    x = torch.randn(1 << 20, device="cuda")
    timer = CudaTimer()
    replay = timer.record([lambda: x * 2] * 8, captures=True)
    before = torch.cuda.memory_reserved()
    del replay
    timer.release()
    assert torch.cuda.memory_reserved() <= before


def test_what_syncs_cannot_be_captured_and_the_timer_goes_on():
    x = torch.ones(4, device="cuda")
    timer = CudaTimer()
    with pytest.raises(RuntimeError):
        timer.record([lambda: x.sum().item()], captures=True)
    assert timer.time_us([timer.record([lambda: x + 1], captures=True)])[0] > 0
