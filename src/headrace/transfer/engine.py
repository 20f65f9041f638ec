"""The transfer engine of one rank: regions, one-sided writes, and sums of immediates.

It adds to a transport what every transport needs alike: bounds, write numbers, and the judgement
of immediates. It never blocks and starts no thread of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import (
    CancelToken,
    Completion,
    Fragments,
    Grant,
    Immediate,
    Int64s,
    Region,
    Transport,
)
from headrace.transfer.inbox import DROP_REASONS, Inbox


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What ``poll`` found.

    Attributes:
        completed: Immediate ids whose expected sum was reached, each once.
        immediates: Accepted immediates, repeats and strangers removed.
    """

    completed: list[int]
    immediates: list[Immediate]


class LocalRegion:
    """Memory that someone else owns, registered as a source of writes."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer.cast("B")

    @property
    def buffer(self) -> memoryview:
        """The bytes."""
        return self._buffer

    def close(self) -> None:
        """Let go of the memory; its owner frees it."""
        self._buffer.release()


class TransferEngine:
    """One rank's end of every transfer.

    Args:
        transport: How bytes move; owned by the engine from here on.
        rank: This rank's index in its replica.
        generation: This rank's generation.

    All methods are called from one thread.
    """

    def __init__(self, transport: Transport, *, rank: int, generation: int) -> None:
        self._transport = transport
        self._rank = rank
        self._generation = generation
        self._inbox = Inbox()
        self._next_imm = 0
        self._next_write: dict[tuple[str, int], int] = {}

    def open(self) -> None:
        """Bind the doorbell and start the transport."""
        self._transport.open()

    def allocate(self, layout: CacheLayout) -> tuple[Region, RegionDescriptor]:
        """Make a zeroed region for ``layout``.

        Returns:
            The local handle, which owns the memory until its ``close``, and the descriptor to
            give to peers.
        """
        return self._transport.allocate(layout)

    def register(self, buffer: memoryview) -> LocalRegion:
        """Register memory of this process as a source of writes; peers cannot write into it."""
        return LocalRegion(buffer)

    def next_imm(self) -> int:
        """Mint an immediate id, never used before in this generation."""
        imm = self._next_imm
        self._next_imm += 1
        return imm

    def write(
        self,
        source: Region,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        imm: int,
        token: CancelToken | None = None,
    ) -> Completion:
        """Start copying fragments into a peer's region; rings the peer when the bytes are there.

        Args:
            source: Local region; its bytes under the fragments must not change until the
                completion is done.
            target: The peer's region.
            fragments: Offsets into ``source`` and ``target``; at least one.
            imm: The session's immediate id, minted by the peer.
            token: Cancels the write if its copy has not begun.

        Raises:
            TransferError: No fragments, or one that leaves its region.
        """
        _check_bounds(
            "source", fragments.source_offsets, fragments.num_bytes, limit=len(source.buffer)
        )
        _check_bounds(
            "target", fragments.target_offsets, fragments.num_bytes, limit=target.num_bytes
        )
        immediate = Immediate(
            imm=imm,
            source_rank=self._rank,
            generation=self._generation,
            write_number=self._write_number(target, imm),
            num_bytes=fragments.total_bytes,
        )
        return self._transport.write(
            source.buffer,
            target,
            fragments,
            immediate=immediate,
            token=token or CancelToken(),
        )

    def expect(self, imm: int, num_bytes: int, *, writers: Mapping[int, int] | None = None) -> None:
        """Declare the byte sum at which ``imm`` is complete; see ``Inbox.expect``."""
        self._inbox.expect(imm, num_bytes, writers=writers)

    def grant(self, imm: int, grant: Grant) -> None:
        """Let writers write, before they are told of ``imm``; see ``Transport.grant``."""
        self._transport.grant(imm, grant)

    def retire(self, imm: int) -> None:
        """Forget an id whose session is complete or quiet, and what was granted to it.

        On return no write of the session can touch the region; see ``Inbox.retire`` too.
        """
        self._transport.revoke(imm)
        self._inbox.retire(imm)

    def poll(self) -> Arrivals:
        """Return what arrived since the last call; never blocks."""
        for immediate in self._transport.poll():
            self._inbox.deliver(immediate)
        return Arrivals(*self._inbox.take())

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``poll`` or a completion has news."""
        return self._transport.fileno()

    def end_writes(self, target: RegionDescriptor, imm: int) -> Completion:
        """End the writes of a session: all are done, none will follow.

        Returns:
            The fence: done when no write is under way any more; see ``Transport.fence``.
        """
        self._next_write.pop((target.name, imm), None)
        return self._transport.fence(target, imm)

    def forget(self, target: RegionDescriptor) -> None:
        """Drop what is kept of a peer's region whose generation is over."""
        self._transport.forget(target)

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name. Any thread may call."""
        dropped = self._inbox.dropped
        return self._transport.counters() | {
            f"headrace_transfer_immediates_dropped_{reason}_total": float(dropped[reason])
            for reason in DROP_REASONS
        }

    def close(self) -> None:
        """Stop and release everything but the regions, which their owners close."""
        self._transport.close()

    def _write_number(self, target: RegionDescriptor, imm: int) -> int:
        number = self._next_write.get((target.name, imm), 0)
        self._next_write[(target.name, imm)] = number + 1
        return number


def _check_bounds(side: str, offsets: Int64s, num_bytes: Int64s, *, limit: int) -> None:
    if not len(offsets):
        raise TransferError("write without fragments: expected at least one")
    # One range is the common case, and plain numbers are ten times as fast as arrays of one.
    if len(offsets) == 1:
        low, size = offsets.item(), num_bytes.item()
        high = low + size
    else:
        low, high = int(offsets.min()), int((offsets + num_bytes).max())
        size = int(num_bytes.min())
    if low < 0 or high > limit or size < 0:
        raise TransferError(
            f"write of {side} bytes [{low}, {high}): the region has bytes [0, {limit})"
        )
