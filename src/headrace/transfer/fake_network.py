"""What connects fake transports: a network in one process where faults go by a script.

A write has three moments, each of which a script can hold up or spoil: it is posted, its bytes
land, its immediate rings. Everything is decided by the script, its seed, and who pumps when.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Immediate
from headrace.transfer.completion import Outcome
from headrace.transfer.copy import copy_fragments


@dataclass(slots=True)
class Script:
    """What goes wrong. Fields may be changed between pumps.

    Attributes:
        seed: Of everything random.
        delay_pumps: Pumps that a posted write waits before its bytes land.
        ring_delay_pumps: Pumps between landing and ringing.
        lose: Probability that an immediate never rings (the bytes land, the sender sees success).
        duplicate: Probability that an immediate rings twice.
        is_reordered: Writes land, and immediates ring, in random order.
        held_ranks: Source ranks whose writes stay posted until released.
        stuck_ranks: Source ranks whose writes begin but do not land until released: cancelling
            comes too late for them.
        failing_ranks: Source ranks whose posts fail.
        losing_ranks: Source ranks all of whose immediates are lost.
    """

    seed: int = 0
    delay_pumps: int = 0
    ring_delay_pumps: int = 0
    lose: float = 0.0
    duplicate: float = 0.0
    is_reordered: bool = False
    held_ranks: set[int] = field(default_factory=set)
    stuck_ranks: set[int] = field(default_factory=set)
    failing_ranks: set[int] = field(default_factory=set)
    losing_ranks: set[int] = field(default_factory=set)


class FakeRegion:
    """Memory that the network can reach by name until it is closed."""

    def __init__(self, num_bytes: int, forget: Callable[[], None]) -> None:
        self._bytes = bytearray(num_bytes)
        self._buffer = memoryview(self._bytes)
        self._forget = forget

    @property
    def buffer(self) -> memoryview:
        """Writable bytes."""
        return self._buffer

    def close(self) -> None:
        """Take the name away: later writes to it fail."""
        self._forget()


@dataclass(slots=True)
class PostedWrite:
    """A write that has not landed; ``wakes`` tells its sender that it is over."""

    source: memoryview
    target: RegionDescriptor
    fragments: Fragments
    immediate: Immediate
    token: CancelToken
    completion: Outcome
    wakes: Callable[[], None]
    wait_pumps: int
    has_begun: bool = False


class Receiver(Protocol):
    """What the network delivers to."""

    def take(self, immediate: Immediate) -> None:
        """Take one immediate."""
        ...


@dataclass(slots=True)
class _Ring:
    doorbell: str
    immediate: Immediate
    wait_pumps: int


class FakeNetwork:
    """What connects fake transports; thread-safe.

    Args:
        script: What goes wrong.
        is_automatic: Pump at every poll, so that engines run on it without knowing.
    """

    def __init__(self, script: Script | None = None, *, is_automatic: bool = False) -> None:
        self.script = script or Script()
        self.is_automatic = is_automatic
        self.counts: Counter[str] = Counter()
        self._random = random.Random(self.script.seed)
        self._lock = threading.Lock()
        self._regions: dict[str, FakeRegion] = {}
        self._bells: dict[str, Receiver] = {}
        self._posted: list[PostedWrite] = []
        self._rings: list[_Ring] = []

    def pump(self) -> int:
        """Let everything that is due land and ring; return how many things happened."""
        with self._lock:
            due = self._take_due_writes()
            for write in due:
                self._land(write)
            rings = self._take_due_rings()
            for ring in rings:
                self._deliver(ring)
            return len(due) + len(rings)

    def settle(self) -> None:
        """Pump until nothing but held writes is left."""
        while self.pump() or self._is_waiting():
            pass

    def num_posted(self) -> int:
        """Writes that have not landed."""
        return len(self._posted)

    def attach(self, name: str, transport: Receiver) -> None:
        """Connect a transport's doorbell."""
        with self._lock:
            self._bells[name] = transport

    def detach(self, name: str) -> None:
        """Disconnect a doorbell and drop its owner's regions: its generation is over."""
        with self._lock:
            self._bells.pop(name, None)
            for region in [one for one in self._regions if one.startswith(f"{name}/")]:
                del self._regions[region]

    def forget_writer(self, rank: int, *, generation: int) -> None:
        """Drop what a source rank had posted: a dead process copies nothing."""
        with self._lock:
            self._posted = [
                write
                for write in self._posted
                if (write.immediate.source_rank, write.immediate.generation) != (rank, generation)
            ]

    def add_region(self, name: str, num_bytes: int) -> FakeRegion:
        """Make a region that writes can name."""
        region = FakeRegion(num_bytes, lambda: self._drop_region(name))
        with self._lock:
            self._regions[name] = region
        return region

    def post(self, write: PostedWrite) -> None:
        """Take a write from a transport."""
        with self._lock:
            if write.immediate.source_rank in self.script.failing_ranks:
                write.completion.finish("post failed")
                write.wakes()
                return
            write.wait_pumps = self.script.delay_pumps
            self._posted.append(write)
            if self.is_automatic:
                write.wakes()

    def _take_due_writes(self) -> list[PostedWrite]:
        free = [one for one in self._posted if not self._is_held(one)]
        due = [write for write in free if write.wait_pumps <= 0]
        for write in free:
            write.wait_pumps -= 1
        for write in self._posted:
            if write.immediate.source_rank in self.script.stuck_ranks:
                write.has_begun = write.has_begun or not write.token.is_cancelled()
        self._posted = [one for one in self._posted if not any(one is write for write in due)]
        if self.script.is_reordered:
            self._random.shuffle(due)
        return due

    def _take_due_rings(self) -> list[_Ring]:
        due = [ring for ring in self._rings if ring.wait_pumps <= 0]
        self._rings = [ring for ring in self._rings if ring.wait_pumps > 0]
        for ring in self._rings:
            ring.wait_pumps -= 1
        if self.script.is_reordered:
            self._random.shuffle(due)
        return due

    def _land(self, write: PostedWrite) -> None:
        write.completion.finish(self._copy(write))
        write.wakes()
        if write.completion.error():
            return
        self.counts["landed"] += 1
        rank = write.immediate.source_rank
        if rank in self.script.losing_ranks or self._random.random() < self.script.lose:
            self.counts["lost"] += 1
            return
        times = 2 if self._random.random() < self.script.duplicate else 1
        for extra in range(times):
            wait = self.script.ring_delay_pumps + extra
            self._rings.append(_Ring(write.target.doorbell, write.immediate, wait))

    def _copy(self, write: PostedWrite) -> str:
        if write.token.is_cancelled() and not write.has_begun:
            return "cancelled before it began"
        region = self._regions.get(write.target.name)
        if region is None:
            return f"region {write.target.name} is gone"
        copy_fragments(
            np.frombuffer(write.source, np.uint8),
            np.frombuffer(region.buffer, np.uint8),
            write.fragments,
        )
        return ""

    def _deliver(self, ring: _Ring) -> None:
        transport = self._bells.get(ring.doorbell)
        if transport is not None:
            transport.take(ring.immediate)

    def _is_waiting(self) -> bool:
        return bool(self._rings) or not all(self._is_held(write) for write in self._posted)

    def _is_held(self, write: PostedWrite) -> bool:
        return write.immediate.source_rank in self.script.held_ranks | self.script.stuck_ranks

    def _drop_region(self, name: str) -> None:
        with self._lock:
            self._regions.pop(name, None)
