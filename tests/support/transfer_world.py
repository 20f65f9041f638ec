"""Transfer engines of one deployment over a transport of choice, for one set of tests over all."""

from __future__ import annotations

import secrets
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.core.chaos import WriteFaults
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import Completion, Fragments, Grant, Transport
from headrace.transfer.chaos import ChaosTransport
from headrace.transfer.engine import TransferEngine
from headrace.transfer.fake import FakeTransport
from headrace.transfer.fake_network import FakeNetwork
from headrace.transfer.shm import ShmTransport
from headrace.transfer.tcp import TcpTransport

KEY = b"a key of a test deployment"
# A bound on waits that end by an event; nothing sleeps this long unless it is broken.
PATIENCE_S = 20.0


def fragments(*triples: tuple[int, int, int]) -> Fragments:
    """Return fragments of (source offset, target offset, bytes)."""
    return Fragments(*np.array(triples, np.int64).reshape(-1, 3).T)


def grant_all(region: RegionDescriptor, *, writer: str, generation: int) -> Grant:
    """Return a grant of a whole region to one rank, e.g. ``prefill.3``."""
    replica, _, rank = writer.rpartition(".")
    layout = region.layout
    return Grant(
        region=region,
        block_ids=range(layout.num_blocks),
        start=0,
        stop=layout.num_blocks * layout.block_size,
        replica=replica,
        writers={int(rank): generation},
    )


def wait_readable(fileno: int) -> bool:
    """Wait until a descriptor is readable."""
    return bool(select.select([fileno], [], [], PATIENCE_S)[0])


class World(Protocol):
    """A deployment on one transport."""

    def transport(self, name: str, *, rank: int = 0, generation: int = 1) -> Transport:
        """Make the transport of one rank, not yet open."""
        ...

    def settle(self, sender: TransferEngine, completions: Sequence[Completion]) -> None:
        """Wait until writes are done and their immediates delivered."""
        ...


def make_engine(world: World, name: str, *, rank: int = 0, generation: int = 1) -> TransferEngine:
    """Make and open the engine of one rank."""
    transport = world.transport(name, rank=rank, generation=generation)
    engine = TransferEngine(transport, rank=rank, generation=generation)
    engine.open()
    return engine


class FakeWorld:
    """All ranks on one fake network."""

    def __init__(self) -> None:
        self.network = FakeNetwork()

    def transport(self, name: str, *, rank: int = 0, generation: int = 1) -> Transport:
        return FakeTransport(
            self.network, name=f"{name}.{generation}", rank=rank, generation=generation
        )

    def settle(self, sender: TransferEngine, completions: Sequence[Completion]) -> None:
        self.network.settle()
        assert all(one.is_done() for one in completions)


class ShmWorld:
    """All ranks over real segments and doorbells."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        # Segments lie in one folder for the whole machine, where other runs of the tests may be.
        self.deployment_id = f"test-{secrets.token_hex(4)}"

    def transport(self, name: str, *, rank: int = 0, generation: int = 1) -> Transport:
        return ShmTransport(
            deployment_id=self.deployment_id,
            owner=name,
            rank=rank,
            generation=generation,
            run_dir=self.run_dir,
            key=KEY,
        )

    def settle(self, sender: TransferEngine, completions: Sequence[Completion]) -> None:
        wait_done(sender, completions)


class TcpWorld:
    """All ranks over sockets of the loopback interface."""

    def transport(self, name: str, *, rank: int = 0, generation: int = 1) -> Transport:
        return TcpTransport(owner=name, rank=rank, generation=generation, key=KEY)

    def settle(self, sender: TransferEngine, completions: Sequence[Completion]) -> None:
        wait_done(sender, completions)


class ChaosWorld:
    """Another world whose ranks suffer faults that the contract of a write allows."""

    def __init__(self, world: World, faults: WriteFaults) -> None:
        self._world = world
        self._faults = faults

    def transport(self, name: str, *, rank: int = 0, generation: int = 1) -> Transport:
        inner = self._world.transport(name, rank=rank, generation=generation)
        return ChaosTransport(inner, self._faults, num_ranks=1, name=name)

    def settle(self, sender: TransferEngine, completions: Sequence[Completion]) -> None:
        self._world.settle(sender, completions)


def wait_done(sender: TransferEngine, completions: Sequence[Completion]) -> None:
    while not all(one.is_done() for one in completions):
        assert wait_readable(sender.fileno())
        # Polling is what resets the descriptor; a sender has no immediates to lose.
        sender.poll()
