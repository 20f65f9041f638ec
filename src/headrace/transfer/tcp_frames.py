"""Frames on a data socket: an authenticated head, a table of byte ranges, then the bytes.

    head (68)  magic kind fragments region sequence imm write total payload | MAC of head and table
    table      int64 target offset and int64 size of each range; in any order, none empty
    payload    the ranges' bytes in the order of the table

The MAC is keyed per socket and direction by its handshake and covers a sequence number, so that a
frame can neither be forged, replayed, dropped nor moved to another socket. It does not cover the
payload: on the fast path bytes go from the kernel into the region and are touched by nobody, and
hashing them would cost more than moving them. Whoever can alter packets between hosts can
therefore alter KV bytes *inside* what was granted, and nothing else; docs/adr says more.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import cache

import numpy as np
from msgspec import Struct

from headrace.core.errors import ProtocolError
from headrace.core.transport import Fragments
from headrace.transfer.tcp_stream import MAX_VECTORS

# One vector of a send is the head's.
MAX_FRAGMENTS = MAX_VECTORS - 1
# A frame's bytes go over one socket; longer writes are spread over several [bytes].
MAX_PAYLOAD_BYTES = 4 << 20
# The total of a write, and any offset, fit a signed 64-bit number.
_MAX_TOTAL_BYTES = 2**63 - 1
_MAGIC = b"HW"
_FIELDS = struct.Struct("<2sBxIIQQQQQ")
_MAC_BYTES = 16
HEAD_BYTES = _FIELDS.size + _MAC_BYTES


# Offset and size [bytes].
Range = tuple[int, int]


class Kind(IntEnum):
    """What a frame is."""

    WRITE = 1
    FENCE = 2
    FENCE_READ = 3


class Refusal(IntEnum):
    """Why the bytes of an authentic write did not touch the region; travels with ``FENCE_READ``."""

    NONE = 0
    NOT_GRANTED = 1
    STRANGER = 2
    OUTSIDE = 3
    OVERFULL = 4


class Frame(Struct, frozen=True, kw_only=True):
    """The head of a frame.

    Attributes:
        kind: What it is.
        region: Number of the target region at its owner (``WRITE``), or a ``Refusal``
            (``FENCE_READ``).
        imm: Immediate id of the session.
        write: Write number (``WRITE``), or the fence's number.
        total_bytes: Bytes of the whole write, whose frames may go over several sockets.
        payload_bytes: Bytes that follow the table.
        num_fragments: Ranges of the table.
    """

    kind: Kind
    imm: int
    write: int
    region: int = 0
    total_bytes: int = 0
    payload_bytes: int = 0
    num_fragments: int = 0

    @property
    def table_bytes(self) -> int:
        """Bytes of the table that follows the head."""
        return 16 * self.num_fragments


@cache
def _table(num_ranges: int) -> struct.Struct:
    return struct.Struct(f"<{2 * num_ranges}q")


class FrameCodec:
    """Packs or unpacks the frames of one direction of one socket, in order.

    Args:
        key: Key of the direction, from the handshake.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sequence = 0

    def pack(self, frame: Frame, ranges: Sequence[Range] = ()) -> bytes:
        """Return head and table of the next frame."""
        table = _table(len(ranges)).pack(*(number for pair in ranges for number in pair))
        fields = _FIELDS.pack(
            _MAGIC,
            frame.kind,
            len(ranges),
            frame.region,
            self._sequence,
            frame.imm,
            frame.write,
            frame.total_bytes,
            frame.payload_bytes,
        )
        self._sequence += 1
        return fields + self._mac(fields, table) + table

    def unpack(self, head: bytes | memoryview) -> Frame:
        """Return a head that is in bounds and in sequence; its MAC is yet to be checked.

        Raises:
            ProtocolError: It is not one, is too large, or does not come next.
        """
        magic, kind, num_fragments, region, sequence, imm, write, total, payload = (
            _FIELDS.unpack_from(head)
        )
        if magic != _MAGIC or kind not in Kind.__members__.values():
            raise ProtocolError("data frame without the protocol's magic or of no known kind")
        if sequence != self._sequence:
            raise ProtocolError(f"data frame {sequence}: expected frame {self._sequence}")
        if num_fragments > MAX_FRAGMENTS or payload > MAX_PAYLOAD_BYTES:
            raise ProtocolError(
                f"data frame of {num_fragments} ranges and {payload} bytes: the limits are "
                f"{MAX_FRAGMENTS} and {MAX_PAYLOAD_BYTES}"
            )
        has_bytes = num_fragments or total
        if payload > total or total > _MAX_TOTAL_BYTES or (kind != Kind.WRITE and has_bytes):
            raise ProtocolError("data frame whose sizes contradict each other")
        return Frame(
            kind=Kind(kind),
            imm=imm,
            write=write,
            region=region,
            total_bytes=total,
            payload_bytes=payload,
            num_fragments=num_fragments,
        )

    def check(
        self, frame: Frame, head: bytes | memoryview, table: bytes | memoryview
    ) -> list[Range]:
        """Believe a frame, and return the ranges of its table.

        Raises:
            ProtocolError: Wrong key, or ranges that are empty or do not add up.
        """
        mac = self._mac(head[: _FIELDS.size], table)
        if not hmac.compare_digest(mac, bytes(head[_FIELDS.size :])):
            raise ProtocolError("data frame with a wrong key")
        self._sequence += 1
        numbers = _table(frame.num_fragments).unpack(table)
        offsets, sizes = numbers[::2], numbers[1::2]
        if sum(sizes) != frame.payload_bytes or min(numbers, default=0) < 0 or 0 in sizes:
            raise ProtocolError("data frame whose ranges are empty or do not add up")
        return list(zip(offsets, sizes, strict=True))

    def _mac(self, fields: bytes | memoryview, table: bytes | memoryview) -> bytes:
        mac = hashlib.blake2b(fields, key=self._key, digest_size=_MAC_BYTES)
        mac.update(table)
        return mac.digest()


def cut_pieces(fragments: Fragments) -> list[Fragments]:
    """Return a write as the shares of its frames; almost always it is one."""
    total = fragments.total_bytes
    if not total or (total <= MAX_PAYLOAD_BYTES and len(fragments.num_bytes) <= MAX_FRAGMENTS):
        return [fragments]
    kept = fragments.num_bytes > 0
    ends = np.cumsum(fragments.num_bytes[kept])
    begins = ends - fragments.num_bytes[kept]
    starts = np.union1d(begins, np.arange(0, total, MAX_PAYLOAD_BYTES))
    index = np.searchsorted(begins, starts, side="right") - 1
    within = starts - begins[index]
    columns = (
        fragments.source_offsets[kept][index] + within,
        fragments.target_offsets[kept][index] + within,
        np.diff(starts, append=total),
    )
    by_bytes = np.flatnonzero(np.diff(starts // MAX_PAYLOAD_BYTES)) + 1
    cuts = [0, *by_bytes.tolist(), len(starts)]
    return [
        Fragments(*(column[first : min(first + MAX_FRAGMENTS, end)] for column in columns))
        for begin, end in zip(cuts, cuts[1:], strict=False)
        for first in range(begin, end, MAX_FRAGMENTS)
    ]


def join_ranges(offsets: list[int], sizes: list[int]) -> list[Range]:
    """Return ranges in order, empty ones left out and neighbours that touch joined."""
    joined: list[Range] = []
    begin = end = -1
    for offset, size in zip(offsets, sizes, strict=True):
        if not size:
            continue
        if offset != end:
            if end > begin:
                joined.append((begin, end - begin))
            begin = offset
        end = offset + size
    if end > begin:
        joined.append((begin, end - begin))
    return joined
