"""Timing of short device work: calls that rotate over inputs, in one CUDA graph, between events.

A kernel of some microseconds is shorter than its launch from Python, and its inputs would stay in
the L2 cache if it were simply called again. So a graph holds many calls, each on the next of
several input sets that together exceed the cache, and whole replays are timed. What syncs with the
host cannot be captured; it runs call by call on the stream, and its time contains its launches.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]
Replay = Callable[[], None]

# Of an H200. The sets of a rotation are several times that: caches are not perfect LRU.
L2_BYTES = 60_000_000
ROTATED_BYTES = 4 * L2_BYTES
# A graph this long makes the events around it, some microseconds, not count.
GRAPH_US = 2000.0
MAX_CALLS = 256
# Device time that one variant of one case may take; slow references are replayed less often.
BUDGET_US = 0.5e6
MIN_REPLAYS = 5


class Timer(Protocol):
    """Records calls and times what was recorded; one thread, one device."""

    def record(self, calls: Sequence[Call], *, captures: bool) -> Replay:
        """Warm the calls up and return what enqueues all of them.

        Args:
            calls: In the order in which they run.
            captures: Into one graph; otherwise they are called again each time.
        """
        ...

    def time_us(self, replays: Sequence[Replay]) -> list[float]:
        """Enqueue the replays one after another, wait once at the end, and return their times."""
        ...

    def release(self) -> None:
        """Return the memory of recordings that nobody holds any more."""
        ...


class CudaTimer:
    """The timer of the current CUDA device."""

    def record(self, calls: Sequence[Call], *, captures: bool) -> Replay:
        """See ``Timer.record``; results of the calls are dropped."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        if not captures:
            return lambda: _run(calls)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _run(calls)
        return graph.replay

    def time_us(self, replays: Sequence[Replay]) -> list[float]:
        """See ``Timer.time_us``."""
        pairs = []
        for replay in replays:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            stop.record()
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) * 1e3 for start, stop in pairs]

    def release(self) -> None:
        """See ``Timer.release``."""
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one variant took, by replay.

    Attributes:
        p50_us: Median over replays of the mean time of a call [us].
        p99_us: 99th percentile over replays of the same [us].
        num_calls: Calls of a replay.
        num_replays: Replays timed.
    """

    p50_us: float
    p99_us: float
    num_calls: int
    num_replays: int


def num_sets(set_bytes: float, *, most: int) -> int:
    """Return over how many input sets calls rotate.

    Args:
        set_bytes: That one call touches.
        most: Kernels on a few rows would need thousands of sets.

    Example:
        >>> num_sets(600e6, most=32), num_sets(50e6, most=32), num_sets(1e3, most=32)
        (2, 5, 32)
    """
    return min(most, max(2, math.ceil(ROTATED_BYTES / max(set_bytes, 1))))


def fits_cache(set_bytes: float, sets: int) -> bool:
    """Return whether a rotation may stay in the L2 cache, in part at least.

    One that is not larger than the cache stays; a few times that are needed to be sure that
    nothing does, which ``num_sets`` gives unless it is held back.

    Example:
        >>> fits_cache(1e6, 32), fits_cache(50e6, 5)
        (True, False)
    """
    return set_bytes * sets < ROTATED_BYTES


def num_calls(sets: int, expected_us: float) -> int:
    """Return how many calls make a graph: whole rotations, long enough to be timed.

    Args:
        sets: Input sets of a rotation.
        expected_us: Least time of a call, such as its floor [us].

    Example:
        >>> num_calls(4, 300.0), num_calls(4, 1.0), num_calls(2, 5000.0)
        (8, 256, 2)
    """
    wanted = min(MAX_CALLS, math.ceil(GRAPH_US / max(expected_us, 1e-3)))
    return sets * max(1, math.ceil(wanted / sets))


def time_interleaved(
    recorded: Mapping[str, tuple[Replay, int]], timer: Timer, *, num_replays: int
) -> dict[str, Timing]:
    """Time several recordings in turns, so that clocks and heat are alike for all.

    Args:
        recorded: By name, a recording and the number of its calls.
        timer: Where they were recorded.
        num_replays: Of each; fewer where that would exceed ``BUDGET_US``, but ``MIN_REPLAYS``.
    """
    wanted = {}
    for name, (replay, _) in recorded.items():
        _, once_us = timer.time_us([replay, replay])
        affordable = int(BUDGET_US / max(once_us, 1e-3))
        wanted[name] = max(min(num_replays, affordable), MIN_REPLAYS)
    turns = [
        name
        for turn in range(max(wanted.values(), default=0))
        for name in recorded
        if turn < wanted[name]
    ]
    times_us = timer.time_us([recorded[name][0] for name in turns])
    by_name: dict[str, list[float]] = {name: [] for name in recorded}
    for name, time_us in zip(turns, times_us, strict=True):
        by_name[name].append(time_us / recorded[name][1])
    return {name: _summarise(times, recorded[name][1]) for name, times in by_name.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed.

    Example:
        >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0], 0.99)
        (2.0, 4.0)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _summarise(times_us: Sequence[float], calls: int) -> Timing:
    return Timing(
        p50_us=statistics.median(times_us),
        p99_us=percentile(times_us, 0.99),
        num_calls=calls,
        num_replays=len(times_us),
    )


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
