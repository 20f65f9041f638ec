"""The fake transport: all ranks in one process, faults by script, nothing moves unless pumped.

For tests, and for ``--chaos``. A write has three moments, each of which a script can hold up: it
is posted, its bytes land, its immediate rings. Everything is decided by the script and its seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Immediate, Region
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
    failing_ranks: set[int] = field(default_factory=set)
    losing_ranks: set[int] = field(default_factory=set)


class FakeCompletion:
    """One scripted write as its sender sees it."""

    def __init__(self) -> None:
        self._outcome: str | None = None

    def finish(self, error: str) -> None:
        """Set the outcome, once."""
        self._outcome = error

    def is_done(self) -> bool:
        """Whether the bytes landed, or never will."""
        return self._outcome is not None

    def error(self) -> str:
        """Empty on success or while under way."""
        return self._outcome or ""


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
class _Posted:
    source: memoryview
    target: RegionDescriptor
    fragments: Fragments
    immediate: Immediate
    token: CancelToken
    completion: FakeCompletion
    wakes: Callable[[], None]
    wait_pumps: int


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
        self._bells: dict[str, FakeTransport] = {}
        self._posted: list[_Posted] = []
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

    def attach(self, name: str, transport: FakeTransport) -> None:
        """Connect a transport's doorbell."""
        with self._lock:
            self._bells[name] = transport

    def detach(self, name: str) -> None:
        """Disconnect a doorbell and drop its owner's regions: its generation is over."""
        with self._lock:
            self._bells.pop(name, None)
            for region in [one for one in self._regions if one.startswith(f"{name}/")]:
                del self._regions[region]

    def add_region(self, name: str, num_bytes: int) -> FakeRegion:
        """Make a region that writes can name."""
        region = FakeRegion(num_bytes, lambda: self._drop_region(name))
        with self._lock:
            self._regions[name] = region
        return region

    def post(self, write: _Posted) -> None:
        """Take a write from a transport."""
        with self._lock:
            if write.immediate.source_rank in self.script.failing_ranks:
                write.completion.finish("post failed")
                write.wakes()
                return
            write.wait_pumps = self.script.delay_pumps
            self._posted.append(write)

    def _take_due_writes(self) -> list[_Posted]:
        due, later = [], []
        for write in self._posted:
            is_held = write.immediate.source_rank in self.script.held_ranks
            if not is_held and write.wait_pumps <= 0:
                due.append(write)
            else:
                write.wait_pumps -= 1
                later.append(write)
        self._posted = later
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

    def _land(self, write: _Posted) -> None:
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

    def _copy(self, write: _Posted) -> str:
        if write.token.is_cancelled():
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
        held = self.script.held_ranks
        return bool(self._rings) or any(
            write.immediate.source_rank not in held for write in self._posted
        )

    def _drop_region(self, name: str) -> None:
        with self._lock:
            self._regions.pop(name, None)


class FakeTransport:
    """One rank's end of a ``FakeNetwork``.

    Args:
        network: Shared by all ranks.
        name: Unique per rank and generation.
        rank: Rank's index in its replica.
        generation: Rank's generation.
    """

    def __init__(self, network: FakeNetwork, *, name: str, rank: int, generation: int) -> None:
        self._network = network
        self._name = name
        self._rank = rank
        self._generation = generation
        self._arrived: list[Immediate] = []
        self._num_regions = 0
        self._wake: int | None = None

    def open(self) -> None:
        """Connect to the network."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._network.attach(self._name, self)

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """Make a zeroed region that peers can write into."""
        name = f"{self._name}/{self._num_regions}"
        self._num_regions += 1
        region = self._network.add_region(name, layout.num_bytes)
        descriptor = RegionDescriptor(
            transport="fake",
            name=name,
            doorbell=self._name,
            rank=self._rank,
            generation=self._generation,
            num_bytes=layout.num_bytes,
            layout=layout,
        )
        return region, descriptor

    def write(
        self,
        source: memoryview,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        immediate: Immediate,
        token: CancelToken,
    ) -> FakeCompletion:
        """Post one write; see ``Transport.write``."""
        if target.transport != "fake":
            raise TransferError(f"region {target.name} ({target.transport}): expected a fake one")
        completion = FakeCompletion()
        self._network.post(
            _Posted(source, target, fragments, immediate, token, completion, self.ring, 0)
        )
        return completion

    def poll(self) -> list[Immediate]:
        """Return what the network delivered."""
        if self._network.is_automatic:
            self._network.pump()
        self._quiet()
        arrived, self._arrived = self._arrived, []
        return arrived

    def fileno(self) -> int:
        """Readable when an immediate has come or a write of ours is over."""
        if self._wake is None:
            raise RuntimeError(f"fake transport {self._name} is not open")
        return self._wake

    def forget(self, target: RegionDescriptor) -> None:
        """Nothing is kept for a peer."""

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name."""
        return {"headrace_transfer_lost_immediates_total": float(self._network.counts["lost"])}

    def close(self) -> None:
        """Disconnect; peers' writes fail from now on. Idempotent."""
        self._network.detach(self._name)
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None

    def take(self, immediate: Immediate) -> None:
        """Take one immediate from the network."""
        self._arrived.append(immediate)
        self.ring()

    def ring(self) -> None:
        """Make ``fileno`` readable."""
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def _quiet(self) -> None:
        try:
            os.eventfd_read(self.fileno())
        except BlockingIOError:
            return
