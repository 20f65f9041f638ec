"""The protocol between the transfer engine and the transports: it fits on one screen.

A write is one-sided and unordered. Its immediate is delivered at most once and names the
destination bytes it delivered; the receiver sums them. Completion at the sender (``is_done``)
means the source bytes may change; for ``shm`` it is also the proof that the write is over.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

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
    """One submitted write, as its sender follows it. Polled from one thread."""

    def is_done(self) -> bool:
        """Whether the transport is finished with both sides' bytes, in success or failure."""
        ...

    def error(self) -> str:
        """Empty on success; otherwise why the write did not (wholly) happen."""
        ...
