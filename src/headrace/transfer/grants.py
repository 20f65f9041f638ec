"""What peers may write into this rank's regions, and who is writing right now.

The guard between sockets and memory: a receiving thread enters with the ranges of one frame, gets
the memory or a refusal, and leaves when the bytes are there. Taking a grant back cuts off whoever
is inside and waits until it has left: from then on nothing of the session touches the region,
whatever its writers believe.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.transport import Grant, Int64s
from headrace.transfer.spans import BlockRun, cut_spans, join_runs
from headrace.transfer.tcp_frames import Frame, Range, Refusal

# Writes of one session of which some frames have come and some have not.
MAX_PARTIAL_WRITES = 4096
# A thread that was cut off only has to return from a copy out of the kernel.
_LEAVE_TIMEOUT_S = 30.0


class Writer(Struct, frozen=True):
    """Who a connection speaks for, as its handshake proved."""

    owner: str
    rank: int
    generation: int


@dataclass(slots=True, eq=False)
class _Granted:
    """One live grant: sorted, disjoint byte ranges, and what is under way in them."""

    grant: Grant
    number: int
    buffer: memoryview
    starts: list[int]
    ends: list[int]
    visits: set[Visit] = field(default_factory=set)
    partial: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Visit:
    """One frame whose bytes are being received.

    Attributes:
        views: Where they go, in the order of the frame's table.
    """

    views: list[memoryview]
    frame: Frame
    writer: Writer
    granted: _Granted
    cut: Callable[[], None]


class Grants:
    """All grants of one rank. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._granted: dict[int, _Granted] = {}

    def __len__(self) -> int:
        """Live grants."""
        return len(self._granted)

    def add(self, imm: int, grant: Grant, *, number: int, buffer: memoryview) -> None:
        """Grant a session its tokens of the region that has this number and these bytes.

        Raises:
            TransferError: The id has a grant already.
        """
        starts, sizes = granted_ranges(grant)
        granted = _Granted(grant, number, buffer, starts.tolist(), (starts + sizes).tolist())
        with self._changed:
            if imm in self._granted:
                raise TransferError(f"immediate {imm} has a grant already")
            self._granted[imm] = granted

    def enter(
        self, frame: Frame, ranges: list[Range], *, writer: Writer, cut: Callable[[], None]
    ) -> Visit | Refusal:
        """Judge a frame and, if all of it is granted, hand out the memory until ``leave``.

        Args:
            frame: An authentic frame.
            ranges: Its table.
            writer: Whose connection it came on.
            cut: Makes the receiving thread leave soon; called when the grant is taken back.
        """
        with self._changed:
            granted = self._granted.get(frame.imm)
            if granted is None or granted.number != frame.region:
                return Refusal.NOT_GRANTED
            if not _is_of(granted.grant, writer):
                return Refusal.STRANGER
            if not _holds(granted, ranges):
                return Refusal.OUTSIDE
            write = (writer.rank, frame.write)
            have = granted.partial.get(write, 0)
            is_new = not have and len(granted.partial) >= MAX_PARTIAL_WRITES
            if is_new or have + frame.payload_bytes > frame.total_bytes:
                return Refusal.OVERFULL
            buffer = granted.buffer
            views = [buffer[offset : offset + size] for offset, size in ranges]
            visit = Visit(views, frame, writer, granted, cut)
            granted.visits.add(visit)
            return visit

    def leave(self, visit: Visit, *, is_whole: bool) -> bool:
        """End a visit.

        Args:
            visit: From ``enter``.
            is_whole: Whether all bytes of the frame came.

        Returns:
            Whether the last byte of the write is there, and its grant was not taken back.
        """
        granted, frame = visit.granted, visit.frame
        visit.views.clear()
        with self._changed:
            granted.visits.discard(visit)
            self._changed.notify_all()
            if not is_whole or self._granted.get(frame.imm) is not granted:
                return False
            write = (visit.writer.rank, frame.write)
            have = granted.partial.pop(write, 0) + frame.payload_bytes
            if have < frame.total_bytes:
                granted.partial[write] = have
            return have >= frame.total_bytes

    def revoke(self, imm: int) -> None:
        """Take a grant back and wait until nobody writes under it; unknown ids are ignored.

        Raises:
            TransferError: A thread does not leave: its blocks must never be used again.
        """
        with self._changed:
            granted = self._granted.pop(imm, None)
            if granted is not None:
                self._expel([granted])

    def revoke_region(self, number: int) -> None:
        """Take back every grant of a region, as ``revoke`` does."""
        with self._changed:
            found = [imm for imm, one in self._granted.items() if one.number == number]
            self._expel([self._granted.pop(imm) for imm in found])

    def _expel(self, granted: list[_Granted]) -> None:
        for one in granted:
            for visit in one.visits:
                visit.cut()
        is_empty = self._changed.wait_for(
            lambda: not any(one.visits for one in granted), timeout=_LEAVE_TIMEOUT_S
        )
        if not is_empty:
            raise TransferError(
                f"a receiving thread did not leave its region within {_LEAVE_TIMEOUT_S} s"
            )


def granted_ranges(grant: Grant) -> tuple[Int64s, Int64s]:
    """Return the byte ranges of a grant, ascending and joined: starts, and sizes [bytes]."""
    layout = grant.region.layout
    run = BlockRun(blocks=np.asarray(grant.block_ids, np.int64), block_size=layout.block_size)
    spans = cut_spans(run, run, start=grant.start, stop=grant.stop)
    starts, sizes = [], []
    for layer, schema in enumerate(layout.layers):
        row_starts = _row_starts(layout, layer)[:, None] + spans.target_slots * schema.token_bytes
        starts.append(row_starts.ravel())
        sizes.append(np.tile(spans.num_tokens * schema.token_bytes, len(row_starts)))
    offsets = np.concatenate(starts)
    return join_runs(offsets, offsets, np.concatenate(sizes))[1:]


def _row_starts(layout: CacheLayout, layer: int) -> Int64s:
    """Return where each (K or V, head) row of a layer begins [bytes]."""
    row_bytes = layout.num_blocks * layout.atom_bytes(layer)
    rows = np.arange(2 * layout.num_heads, dtype=np.int64)
    return layout.layer_offset(layer) + rows * row_bytes


def _is_of(grant: Grant, writer: Writer) -> bool:
    is_rank = writer.owner == f"{grant.replica}.{writer.rank}"
    return is_rank and grant.writers.get(writer.rank) == writer.generation


def _holds(granted: _Granted, ranges: list[Range]) -> bool:
    """Whether every range lies inside one granted range."""
    low = high = 0
    for offset, size in ranges:
        if not (low <= offset and offset + size <= high):
            index = bisect_right(granted.starts, offset) - 1
            if index < 0 or offset + size > granted.ends[index]:
                return False
            low, high = granted.starts[index], granted.ends[index]
    return True
