"""Prefill and decode as two roles of one device: weights and pool are shared, nothing is copied.

Each role has a stream and a thread of the host. Decode's stream has priority: as blocks of a
prefill kernel end, those of a decode kernel take their places first. A chunk's launches take the
host some tens of milliseconds, so a thread of their own makes them; between launches, both of
which release the interpreter, the decode thread goes on. What is handed over is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from headrace.engine.lane import InlineTrack, Mark, PrefillLane, Track

# Lower numbers go first; 0 is the least of CUDA's.
DECODE_PRIORITY = -1
# Steps that may be in flight: one that runs, and one that is launched as soon as it is done.
STEPS_IN_FLIGHT = 2


class Event(Protocol):
    """What a launch ends with."""

    def query(self) -> bool:
        """Whether the device has passed it."""
        ...


class LaunchedMark:
    """See ``Mark``: of a step that a thread is launching, or has launched.

    Args:
        launch: Yields the event behind the step's last kernel.
        hold_back: Has decode's stream wait for such an event.
    """

    def __init__(self, launch: Future[Event], hold_back: Callable[[Any], object]) -> None:
        self._launch = launch
        self._hold_back = hold_back

    def has_passed(self) -> bool:
        """See ``Mark.has_passed``; raises what the launch raised."""
        return self._launch.done() and self._launch.result().query()

    def hold_back(self) -> bool:
        """See ``Mark.hold_back``; raises what the launch raised."""
        if not self._launch.done():
            return False
        self._hold_back(self._launch.result())
        return True


class StreamTrack:
    """See ``Track``. Made by ``open``.

    Args:
        decode: Decode's stream.
        prefill: Prefill's.
    """

    def __init__(self, decode: torch.cuda.Stream, prefill: torch.cuda.Stream) -> None:
        self._decode = decode
        self._prefill = prefill
        self._after = torch.cuda.Event()
        self._last = torch.cuda.Event()
        self._launches = ThreadPoolExecutor(1, thread_name_prefix="prefill")

    @classmethod
    def open(cls, device: torch.device) -> StreamTrack:
        """Make both streams; what is enqueued so far (weights, the pool) precedes them."""
        decode = torch.cuda.Stream(device, priority=DECODE_PRIORITY)
        prefill = torch.cuda.Stream(device)
        for stream in (decode, prefill):
            stream.wait_stream(torch.cuda.current_stream(device))
        return cls(decode, prefill)

    def beside(self) -> AbstractContextManager[object]:
        """See ``Track.beside``."""
        return torch.cuda.stream(self._decode)

    def join(self) -> None:
        """See ``Track.join``."""
        self._after = torch.cuda.Event()
        self._after.record(self._decode)

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """See ``Track.enqueue``; returns before the step is launched."""
        launch: Future[Event] = self._launches.submit(self._launch, work, self._after)
        return LaunchedMark(launch, self._decode.wait_event)

    def close(self) -> None:
        """See ``Track.close``."""
        self._launches.shutdown(cancel_futures=True)

    def _launch(self, work: Callable[[], object], after: torch.cuda.Event) -> Event:
        with torch.cuda.stream(self._prefill):
            # A step is some 600 launches, and the driver queues about a thousand: one that waits
            # for room there may hold up those of the other thread.
            self._last.synchronize()
            self._prefill.wait_event(after)
            work()
            self._last = torch.cuda.Event(blocking=True)
            self._last.record()
        return self._last


def open_track(
    device: torch.device, *, overlaps: bool, max_step_tokens: int
) -> tuple[Track, PrefillLane]:
    """Return where a device's prefill steps run, and the lane that follows them.

    Args:
        device: The engine's.
        overlaps: Prefill beside decode; off, and on a CPU, they take turns.
        max_step_tokens: Prompt tokens of one step at most [tokens].
    """
    if device.type != "cuda" or not overlaps:
        return InlineTrack(), PrefillLane()
    return StreamTrack.open(device), PrefillLane(max_tokens=STEPS_IN_FLIGHT * max_step_tokens)
