"""The protocol between the transfer engine and the transports: it fits on one screen.

A write is one-sided and unordered. Its immediate is delivered at most once and names the
destination bytes it delivered; the receiver sums them. Completion of a write at the sender
(``is_done``) means the source bytes may change; completion of the **fence** that ends a session's
writes means that none of them is under way any more: the transport's proof of quiet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor

Int64s = npt.NDArray[np.int64]


class Fragments(Struct, frozen=True):
    """Byte ranges to move: equal-length int64 arrays of offsets into two regions."""

    source_offsets: Int64s
    target_offsets: Int64s
    num_bytes: Int64s

    @property
    def total_bytes(self) -> int:
        """Bytes that the fragments move together."""
        return int(self.num_bytes.sum())


class Immediate(Struct, frozen=True, array_like=True):
    """What a completed write tells the receiver.

    Attributes:
        imm: Immediate id of the session.
        source_rank: Who wrote.
        generation: The writer's generation.
        write_number: Per session and source rank; a repeat is dropped.
        num_bytes: Destination bytes delivered by this write.
    """

    imm: int
    source_rank: int
    generation: int
    write_number: int
    num_bytes: int


class Grant(Struct, frozen=True, kw_only=True):
    """What the writers of one session may touch: some tokens of one sequence, in every layer.

    Attributes:
        region: The granting rank's own region.
        block_ids: Its blocks, for the sequence from position 0.
        start: First token granted.
        stop: Position after the last one.
        replica: Name of the writers' replica.
        writers: Generation of each of its ranks.
    """

    region: RegionDescriptor
    block_ids: Sequence[int]
    start: int
    stop: int
    replica: str
    writers: Mapping[int, int]


class Region(Protocol):
    """Registered memory of this process: owns the mapping until ``close``."""

    @property
    def buffer(self) -> memoryview:
        """Writable bytes of the region; valid until ``close``."""
        ...

    def close(self) -> None:
        """Unmap and unlink; peers' mappings stay theirs but the name is gone."""
        ...


class Completion(Protocol):
    """One submitted write or fence, as its sender follows it. Polled from one thread."""

    def is_done(self) -> bool:
        """Whether the transport is finished with the source bytes, in success or failure."""
        ...

    def error(self) -> str:
        """Empty on success; otherwise why the write did not (wholly) happen."""
        ...


class CancelToken:
    """Stops writes that have not begun. Set once, from any thread; never cleared."""

    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> None:
        """From now on no write that carries this token begins; one under way drains."""
        self._cancelled = True

    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._cancelled


class Transport(Protocol):
    """Moves bytes into peers' regions and immediates to their owners.

    Called from one thread; what it does in the background never touches the caller's objects
    except through ``Completion``.
    """

    def open(self) -> None:
        """Bind the doorbell and start the background work."""
        ...

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """Make a zeroed region that peers can write into."""
        ...

    def write(
        self,
        source: memoryview,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        immediate: Immediate,
        token: CancelToken,
    ) -> Completion:
        """Start one write; offsets have been checked against both regions.

        The immediate rings at ``target.doorbell`` after the bytes are there. A write whose token
        is cancelled before its copy begins does nothing and completes with an error.
        """
        ...

    def fence(self, target: RegionDescriptor, imm: int) -> Completion:
        """End the writes of a session, all of which are done.

        The completion is done when none of them can touch the target any more. Its error says
        what the writes' own completions could not know: bytes that were refused or lost on the
        way. Nothing may be written for the session afterwards.
        """
        ...

    def grant(self, imm: int, grant: Grant) -> None:
        """Let a session's writers write. Transports whose peers map the memory cannot refuse."""
        ...

    def revoke(self, imm: int) -> None:
        """Take a grant back; on return nothing of the session is written any more, nor will be.

        An id that was never granted is ignored.
        """
        ...

    def poll(self) -> list[Immediate]:
        """Return immediates that have come since the last call, authentic but not yet judged."""
        ...

    def fileno(self) -> int:
        """Readable when an immediate has come, or a write or fence of ours has completed."""
        ...

    def forget(self, target: RegionDescriptor) -> None:
        """Drop what is kept for writing into a region whose generation is over."""
        ...

    def counters(self) -> dict[str, float]:
        """Monotonic counters, by Prometheus name."""
        ...

    def close(self) -> None:
        """Stop writing, release every mapping, name and socket. Idempotent."""
        ...
