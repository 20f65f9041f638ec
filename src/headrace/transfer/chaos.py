"""Faults on purpose, around any transport: writes that are late, lost, out of order, heard twice.

What goes on is handed to the real transport, from the caller's thread and with the caller's
token, so that everything else (bounds, grants, fences, generations) stays its business. Hence a
write goes on at the first call after its time: a rank inside a long step holds it longer.
"""

from __future__ import annotations

import heapq
import random
import select
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from headrace.core.chaos import WriteFaults
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import (
    CancelToken,
    Completion,
    Fragments,
    Grant,
    Immediate,
    Region,
    Transport,
)
from headrace.transfer.alarm import Alarm
from headrace.transfer.completion import finished

# How long a write waits to be overtaken, at most [s]: longer than a layer of a small model takes.
REORDER_S = 0.02


@dataclass(order=True, slots=True)
class _Held:
    """A write that has not gone on; completes as the real one, once that exists."""

    due_s: float
    number: int
    begin: Callable[[], Completion] = field(compare=False)
    release: Callable[[], None] = field(compare=False)
    real: Completion | None = field(default=None, compare=False)

    def is_done(self) -> bool:
        """See ``Completion.is_done``; asking lets writes go on whose time has come."""
        if self.real is None:
            self.release()
        return self.real is not None and self.real.is_done()

    def error(self) -> str:
        """See ``Completion.error``."""
        return self.real.error() if self.real is not None else ""


class ChaosTransport:
    """A transport that keeps its contract badly on purpose: what can be lost is lost sometimes.

    Args:
        inner: The transport that does the work; opened and closed by this one.
        faults: What goes wrong.
        num_ranks: Ranks of the replica: one of them loses the write of a session that loses one.
        name: Makes this rank's draws its own.
        clock: Time.
    """

    def __init__(
        self,
        inner: Transport,
        faults: WriteFaults,
        *,
        num_ranks: int,
        name: str,
        clock: Clock | None = None,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._num_ranks = num_ranks
        self._random = random.Random(f"{faults.seed}/{name}")
        self._clock = clock or SystemClock()
        self._alarm = Alarm(self._clock)
        self._both = select.epoll()
        self._held: list[_Held] = []
        self._echoes: list[Immediate] = []
        self._numbers = count()
        self._counts: Counter[str] = Counter()

    def open(self) -> None:
        """Open the real transport."""
        self._inner.open()
        self._alarm.open()
        for fileno in (self._inner.fileno(), self._alarm.fileno()):
            self._both.register(fileno, select.EPOLLIN)

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """See ``Transport.allocate``."""
        return self._inner.allocate(layout)

    def write(
        self,
        source: memoryview,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        immediate: Immediate,
        token: CancelToken,
    ) -> Completion:
        """Start, hold or lose one write; see ``Transport.write``."""
        self._release()
        if self._is_lost(target, immediate):
            self._counts["lost_writes"] += 1
            self._alarm.ring()
            return finished()

        def begin() -> Completion:
            return self._inner.write(source, target, fragments, immediate=immediate, token=token)

        held_s = self._draw_wait()
        if not held_s:
            return begin()
        self._counts["held_writes"] += 1
        due_s = self._clock.now_s() + held_s
        held = _Held(due_s, next(self._numbers), begin, self._release)
        heapq.heappush(self._held, held)
        self._alarm.set(due_s)
        return held

    def fence(self, target: RegionDescriptor, imm: int) -> Completion:
        """See ``Transport.fence``; the session's writes are done, so none of them is held."""
        return self._inner.fence(target, imm)

    def grant(self, imm: int, grant: Grant) -> None:
        """See ``Transport.grant``."""
        self._inner.grant(imm, grant)

    def revoke(self, imm: int) -> None:
        """See ``Transport.revoke``."""
        self._inner.revoke(imm)

    def poll(self) -> list[Immediate]:
        """Return what has come, some of it in another order, some for a second time."""
        self._alarm.quiet()
        self._release()
        fresh = self._inner.poll()
        arrived, self._echoes = [*self._echoes, *fresh], []
        self._echoes = [one for one in fresh if self._draw(self._faults.duplicate)]
        if self._echoes:
            self._counts["repeated_immediates"] += len(self._echoes)
            self._alarm.ring()
        if self._faults.reorder:
            self._random.shuffle(arrived)
        return arrived

    def fileno(self) -> int:
        """See ``Transport.fileno``."""
        return self._both.fileno()

    def forget(self, target: RegionDescriptor) -> None:
        """See ``Transport.forget``."""
        self._inner.forget(target)

    def counters(self) -> dict[str, float]:
        """Return the real transport's counters and ours, by Prometheus name."""
        return self._inner.counters() | {
            f"headrace_transfer_chaos_{what}_total": float(self._counts[what])
            for what in ("lost_writes", "held_writes", "repeated_immediates")
        }

    def close(self) -> None:
        """Close the real transport; what is held never goes on. Idempotent."""
        for held in self._held:
            held.real = finished("the transport was closed before the write began")
        self._held.clear()
        self._both.close()
        self._alarm.close()
        self._inner.close()

    def _release(self) -> None:
        """Let writes go on whose time has come, the earliest first."""
        while self._held and self._held[0].due_s <= self._clock.now_s():
            held = heapq.heappop(self._held)
            try:
                held.real = held.begin()
            except TransferError as error:
                # Its sender is elsewhere by now, and asks the completion.
                held.real = finished(str(error))
        if self._held:
            self._alarm.set(self._held[0].due_s)

    def _is_lost(self, target: RegionDescriptor, immediate: Immediate) -> bool:
        """Whether the write is the one that its session loses.

        All ranks of the replica draw alike. A rank writes each layer of what it sends first, so
        that the write exists, unless the chosen rank owes the session nothing.
        """
        session = (self._faults.seed, target.rank, target.generation, immediate.imm)
        draw = random.Random(repr(session))
        if draw.random() >= self._faults.lose:
            return False
        rank = draw.randrange(self._num_ranks)
        number = draw.randrange(len(target.layout.layers))
        return (immediate.source_rank, immediate.write_number) == (rank, number)

    def _draw_wait(self) -> float:
        """Return how long the next write is held [s]."""
        wait_s = self._faults.delay_s
        if self._draw(self._faults.reorder):
            wait_s += self._random.uniform(0.0, REORDER_S)
        if self._draw(self._faults.hold):
            wait_s += self._faults.hold_s
        return wait_s

    def _draw(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share
