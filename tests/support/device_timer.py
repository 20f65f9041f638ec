"""A timer without a device: calls run at once, times are scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.bench.device.machine import DeviceMachine
from headrace.bench.device.timing import Call, Replay

MACHINE = DeviceMachine(
    name="NVIDIA Fake; some CPU, 2 cores, Linux",
    num_processors=132,
    driver="570.1",
    clocks={"sm_mhz": 1980.0},
    versions={"triton": "3.6.0", "cuda": "13.0"},
)


class FakeTimer:
    """Runs every recorded call once, and says that each call of a replay took ``call_us``.

    Args:
        call_us: Time of one call; called once a replay.
    """

    def __init__(self, call_us: Callable[[], float] = lambda: 10.0) -> None:
        self.recorded: list[tuple[int, bool]] = []
        self.num_replays = self.num_releases = 0
        self._call_us = call_us
        self._sizes: dict[Replay, int] = {}

    def record(self, calls: Sequence[Call], *, captures: bool) -> Replay:
        for call in calls:
            call()
        self.recorded.append((len(calls), captures))

        def replay() -> None:
            self.num_replays += 1

        self._sizes[replay] = len(calls)
        return replay

    def time_us(self, replays: Sequence[Replay]) -> list[float]:
        for replay in replays:
            replay()
        return [self._sizes[replay] * self._call_us() for replay in replays]

    def release(self) -> None:
        self.num_releases += 1
