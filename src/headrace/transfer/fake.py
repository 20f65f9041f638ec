"""The fake transport: all ranks in one process, faults by script, nothing moves unless pumped.

For tests, and for ``--chaos``.
"""

from __future__ import annotations

import os

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Fragments, Grant, Immediate, Region
from headrace.transfer.completion import Outcome, finished
from headrace.transfer.fake_network import FakeNetwork, PostedWrite


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
    ) -> Outcome:
        """Post one write; see ``Transport.write``."""
        if target.transport != "fake":
            raise TransferError(f"region {target.name} ({target.transport}): expected a fake one")
        completion = Outcome()
        self._network.post(
            PostedWrite(source, target, fragments, immediate, token, completion, self.ring, 0)
        )
        return completion

    def fence(self, target: RegionDescriptor, imm: int) -> Outcome:
        """Nothing to wait for: a write is over when its bytes have landed."""
        return finished()

    def grant(self, imm: int, grant: Grant) -> None:
        """Nothing to keep: the script decides what lands."""

    def revoke(self, imm: int) -> None:
        """Nothing to take back."""

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
