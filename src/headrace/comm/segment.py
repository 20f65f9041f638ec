"""The shared-memory segment of a group: who may map it, what lies where in it, who is alive.

    header page     magic, version, generation, ranks, mailbox bytes
    one line a rank flag, state, and for either parity the collective and one word
    mailboxes       [parity][rank]: bytes meant for every rank, then the data

Rank 0 makes the segment under a name that the caller mints per generation; once all ranks have
mapped it the name is removed, so that nothing can be left behind. Every rank opens the file anew,
threads of one process too, and holds a lock on the byte of its rank: the system drops the lock
when the process ends, however it ends, and that is how the others know.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from pathlib import Path

from headrace.comm.patience import Patience
from headrace.core.errors import ReplicaError

FOLDER = Path("/dev/shm")
DEFAULT_MAILBOX_BYTES = 1 << 20

_MAGIC = 0x4845_4144_5241_4345
_VERSION = 1
_HEADER_BYTES = 4096
# Two cache lines a rank: processors fetch lines in pairs, and a flag must not drag another along.
_LINE_WORDS = 16
_FLOCK = struct.Struct("hhqqi4x")

# Offsets of the words of a line. Kind and word exist twice: a rank may post its next exchange
# while a slower one still reads the last.
FLAG, STATE, KIND, WORD = 0, 1, 2, 4

# Values of STATE.
ABSENT, JOINED, LEFT = 0, 1, 2


class Segment:
    """One rank's mapping of its group's segment. Made by ``create`` or ``join``.

    Attributes:
        words: The whole segment as unsigned 64-bit words; 8-byte aligned loads and stores.
        size: Ranks of the group.
        mailbox_bytes: Data bytes of one mailbox.
        lines: Per rank, the index in ``words`` of its line.
        counts: Per parity and rank, the index in ``words`` of a mailbox's head: byte counts, one
            per destination.
        data: Per parity and rank, the address in this process of a mailbox's data.
    """

    def __init__(
        self, descriptor: int, memory: mmap.mmap, *, size: int, mailbox_bytes: int
    ) -> None:
        self.size = size
        self.mailbox_bytes = mailbox_bytes
        self.words = memoryview(memory).cast("Q")
        self._descriptor = descriptor
        self._memory = memory
        # The address outlives this temporary view: it is the mapping's, not the view's.
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        boxes = [[_box_offset(p, r, size, mailbox_bytes) for r in range(size)] for p in (0, 1)]
        self.lines = [_line_offset(rank) // 8 for rank in range(size)]
        self.counts = [[offset // 8 for offset in row] for row in boxes]
        self.data = [[address + offset + _head_bytes(size) for offset in row] for row in boxes]

    def take_place(self, rank: int) -> None:
        """Lock the byte of ``rank`` and show it as joined."""
        lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError as error:
            raise ReplicaError(
                f"rank {rank} is already in the group: each rank joins once"
            ) from error
        self.words[self.lines[rank] + STATE] = JOINED

    def is_gone(self, rank: int) -> bool:
        """Whether a rank that had joined left, or its process ended."""
        state = self.words[self.lines[rank] + STATE]
        return state == LEFT or (state == JOINED and not self._holds_lock(rank))

    def close(self) -> None:
        """Unmap; idempotent."""
        if self._descriptor >= 0:
            self.words.release()
            self._memory.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def _holds_lock(self, rank: int) -> bool:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, query))[0]
        return bool(kind != fcntl.F_UNLCK)


def segment_bytes(size: int, mailbox_bytes: int = DEFAULT_MAILBOX_BYTES) -> int:
    """Return the bytes of a segment for ``size`` ranks."""
    return _box_offset(2, 0, size, mailbox_bytes)


def create(name: str, *, size: int, generation: int, mailbox_bytes: int) -> Segment:
    """Make the segment ``/dev/shm/<name>`` and map it.

    Raises:
        ReplicaError: The name exists (a stale segment is never reused), or the memory is short.
    """
    num_bytes = segment_bytes(size, mailbox_bytes)
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ReplicaError(
            f"segment {name} exists already: expected a fresh name for generation {generation}"
        ) from error
    try:
        # Reserve it now: a full tmpfs would otherwise kill the first rank that writes.
        os.posix_fallocate(descriptor, 0, num_bytes)
        segment = _map(descriptor, num_bytes, size=size, mailbox_bytes=mailbox_bytes)
    except OSError as error:
        os.close(descriptor)
        unlink(name)
        raise ReplicaError(
            f"segment {name}: no room for {num_bytes} bytes in {FOLDER} ({error.strerror})"
        ) from error
    # The magic comes last: it says that the rest of the header holds.
    for index, word in ((4, mailbox_bytes), (3, size), (2, generation), (1, _VERSION), (0, _MAGIC)):
        segment.words[index] = word
    return segment


def join(name: str, *, size: int, generation: int, patience: Patience) -> Segment:
    """Wait until rank 0 has made the segment and map it.

    Raises:
        ReplicaError: It did not appear in time, or is of another version, generation or size.
    """
    while True:
        segment = _try_join(name, size=size, generation=generation)
        if segment is not None:
            return segment
        if not patience.pause():
            raise ReplicaError(f"rank 0 did not make segment {name} in time")


def unlink(name: str) -> None:
    """Remove the segment's name if it is there; mappings stay valid."""
    (FOLDER / name).unlink(missing_ok=True)


def _try_join(name: str, *, size: int, generation: int) -> Segment | None:
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        if os.pread(descriptor, 8, 0) != struct.pack("=Q", _MAGIC):
            os.close(descriptor)
            return None
        version, found, ranks, mailbox_bytes = struct.unpack("=4Q", os.pread(descriptor, 32, 8))
        if (version, found, ranks) != (_VERSION, generation, size):
            raise ReplicaError(
                f"segment {name} is stale: it has version {version}, generation {found}, "
                f"{ranks} ranks; expected {_VERSION}, {generation}, {size}"
            )
        num_bytes = os.fstat(descriptor).st_size
        return _map(descriptor, num_bytes, size=size, mailbox_bytes=mailbox_bytes)
    except (ReplicaError, OSError):
        os.close(descriptor)
        raise


def _map(descriptor: int, num_bytes: int, *, size: int, mailbox_bytes: int) -> Segment:
    memory = mmap.mmap(descriptor, num_bytes)
    return Segment(descriptor, memory, size=size, mailbox_bytes=mailbox_bytes)


def _head_bytes(size: int) -> int:
    return -(-size * 8 // 64) * 64


def _line_offset(rank: int) -> int:
    return _HEADER_BYTES + rank * _LINE_WORDS * 8


def _box_offset(parity: int, rank: int, size: int, mailbox_bytes: int) -> int:
    stride = _head_bytes(size) + mailbox_bytes
    return _line_offset(size) + (parity * size + rank) * stride
