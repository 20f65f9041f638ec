"""Collectives of ranks on one host, over one shared-memory segment.

Every exchange is the same: write the own mailbox, post (a plain store of the exchange's number to
the own flag), wait until every flag has reached that number, read the others' mailboxes. There are
two mailboxes a rank, used in turn: a rank that writes exchange s + 2 has seen everybody post
s + 1, hence everybody has read s. Messages larger than a mailbox take several exchanges.

Flags are plain stores, which is right on x86-64 only: stores become visible in program order
(the C library ends its streaming copies with a fence), and loads are not reordered with loads.
Other architectures are refused; there each exchange needs an operating-system semaphore.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from headrace.comm import segment as seg
from headrace.comm.group import check_word
from headrace.comm.patience import Patience
from headrace.core.errors import CollectiveError, ConfigError, ReplicaError

_KINDS = ("nothing", "agree", "barrier", "all_gather", "all_to_all")
_AGREE, _BARRIER, _ALL_GATHER, _ALL_TO_ALL = range(1, 5)

# A call through ctypes releases the GIL while it copies.
_copy = ctypes.memmove


class SharedMemoryGroup:
    """A ``Group`` of processes, or of threads of one process. Made by ``open``.

    Args:
        segment: This rank's own mapping; closed with the group.
        rank: This rank's index.
        timeout_s: Longest wait for the other ranks in one exchange [s].
    """

    def __init__(self, segment: seg.Segment, *, rank: int, timeout_s: float) -> None:
        self._segment = segment
        self._rank = rank
        self._timeout_s = timeout_s
        self._sequence = 0
        self._is_broken = False
        self._is_closed = False
        self._line = segment.lines[rank]
        self._peers = [(r, line) for r, line in enumerate(segment.lines) if r != rank]

    @classmethod
    def open(
        cls,
        name: str,
        *,
        rank: int,
        size: int,
        generation: int,
        timeout_s: float,
        join_timeout_s: float | None = None,
        mailbox_bytes: int = seg.DEFAULT_MAILBOX_BYTES,
    ) -> SharedMemoryGroup:
        """Join the group, waiting until every rank has.

        Args:
            name: File name of the segment in ``/dev/shm``; the same on all ranks, fresh for each
                generation, starting with the deployment's id so that it can be swept.
            rank: This rank's index; rank 0 makes the segment.
            size: Ranks of the group.
            generation: The same on all ranks; a segment of another one is refused.
            timeout_s: Longest wait for the other ranks in one exchange [s].
            join_timeout_s: Longest wait for the others to join [s]; ``timeout_s`` when None.
            mailbox_bytes: Bytes a rank hands over in one exchange; a multiple of 64, rank 0's
                counts. The segment takes ``2 * size * mailbox_bytes``.

        Raises:
            ConfigError: Not an x86-64 machine, or arguments that cannot be.
            ReplicaError: The name is in use, stale, or a rank did not join in time.
        """
        _check(rank, size, mailbox_bytes=mailbox_bytes)
        patience = Patience(timeout_s if join_timeout_s is None else join_timeout_s)
        if rank == 0:
            segment = seg.create(
                name, size=size, generation=generation, mailbox_bytes=mailbox_bytes
            )
        else:
            segment = seg.join(name, size=size, generation=generation, patience=patience)
        group = cls(segment, rank=rank, timeout_s=timeout_s)
        try:
            segment.take_place(rank)
            group._await_joined(patience)
        except ReplicaError:
            group.close()
            raise
        finally:
            # Everyone has it mapped, or never will: from here on nothing is left behind.
            if rank == 0:
                seg.unlink(name)
        return group

    @property
    def rank(self) -> int:
        """This rank's index in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._segment.size

    def agree(self, word: int) -> list[int]:
        """See ``Group.agree``. The word rides beside the flag; no mailbox is touched."""
        return self._exchange(_AGREE, check_word(word))

    def barrier(self) -> None:
        """See ``Group.barrier``."""
        self._exchange(_BARRIER, 0)

    def all_gather(self, x: Tensor) -> Tensor:
        """See ``Group.all_gather``."""
        source = x.contiguous()
        gathered = torch.empty((self.size, *x.shape), dtype=x.dtype)
        num_bytes, box_bytes = source.nbytes, self._segment.mailbox_bytes
        target = gathered.data_ptr()
        _copy(target + self._rank * num_bytes, source.data_ptr(), num_bytes)
        for start in range(0, max(num_bytes, 1), box_bytes):
            length = min(box_bytes, num_bytes - start)
            _copy(self._next_mailbox(), source.data_ptr() + start, length)
            announced = self._exchange(_ALL_GATHER, num_bytes)
            if announced.count(num_bytes) != self.size:
                self._fail(f"ranks gather unequal tensors, of {announced} bytes")
            boxes = self._segment.data[self._sequence & 1]
            for rank, _ in self._peers:
                _copy(target + rank * num_bytes + start, boxes[rank], length)
        return gathered

    def all_to_all(self, parts: list[Tensor]) -> list[Tensor]:
        """See ``Group.all_to_all``. A rank's parts lie in its mailbox one after the other."""
        row_shape, row_bytes = _row_layout(parts, self.size)
        sources = [part.contiguous() for part in parts]
        counts = [0 if d == self._rank else part.nbytes for d, part in enumerate(sources)]
        stream = _Stream(counts)
        self._write_round(stream, sources, 0)
        totals = self._exchange(_ALL_TO_ALL, stream.total)
        streams = self._read_counts()
        received = [
            parts[r]
            if r == self._rank
            else parts[r].new_empty((_rows(s.counts[self._rank], row_bytes), *row_shape))
            for r, s in enumerate(streams)
        ]
        self._read_round(streams, received, 0)
        box_bytes = self._segment.mailbox_bytes
        for start in range(box_bytes, max(totals), box_bytes):
            self._write_round(stream, sources, start)
            self._exchange(_ALL_TO_ALL, stream.total)
            self._read_round(streams, received, start)
        return received

    def abort(self) -> None:
        """See ``Group.abort``. Safe from any thread until ``close``."""
        if not self._is_closed:
            self._segment.words[self._line + seg.STATE] = seg.LEFT

    def close(self) -> None:
        """See ``Group.close``."""
        self.abort()
        self._is_closed = True
        self._segment.close()

    def _next_mailbox(self) -> int:
        self._check_usable()
        return self._segment.data[(self._sequence + 1) & 1][self._rank]

    def _exchange(self, kind: int, word: int) -> list[int]:
        """Post the next exchange, wait for everyone's, return everyone's word."""
        self._check_usable()
        self._sequence = sequence = self._sequence + 1
        words, line, parity = self._segment.words, self._line, sequence & 1
        words[line + seg.KIND + parity] = kind
        words[line + seg.WORD + parity] = word
        words[line + seg.FLAG] = sequence
        for _, peer_line in self._peers:
            if words[peer_line] < sequence:
                self._wait(kind)
                break
        for rank, peer_line in self._peers:
            other = words[peer_line + seg.KIND + parity]
            if other != kind:
                self._fail(
                    f"rank {rank} is in {_KINDS[other]} while rank {self._rank} is in "
                    f"{_KINDS[kind]} (exchange {sequence})"
                )
        return [words[line + seg.WORD + parity] for line in self._segment.lines]

    def _wait(self, kind: int) -> None:
        patience, where = Patience(self._timeout_s), f"{_KINDS[kind]} (exchange {self._sequence})"
        while missing := self._missing():
            if patience.is_asleep:
                self._look_for_leavers(missing, where, patience.waited_s)
            if not patience.pause():
                self._fail(
                    f"{where}: no {_names(missing)} after {self._timeout_s:g} s",
                    missing=missing,
                    waited_s=patience.waited_s,
                )

    def _missing(self) -> list[int]:
        words, sequence = self._segment.words, self._sequence
        return [rank for rank, line in self._peers if words[line] < sequence]

    def _look_for_leavers(self, missing: list[int], where: str, waited_s: float) -> None:
        if self._segment.words[self._line + seg.STATE] == seg.LEFT:
            self._fail(f"{where}: rank {self._rank} itself was told to leave")
        gone = [rank for rank in missing if self._segment.is_gone(rank)]
        # A rank may post its last exchange and then leave: look at the flags once more.
        still = self._missing() if gone else []
        gone = [rank for rank in gone if rank in still]
        if gone:
            waiting = [rank for rank in still if rank not in gone]
            others = f"; {_names(waiting)} not here either" if waiting else ""
            self._fail(
                f"{where}: {_names(gone)} left the group{others}",
                missing=still,
                waited_s=waited_s,
                because=f": {_names(gone)} left the group",
            )

    def _await_joined(self, patience: Patience) -> None:
        words = self._segment.words
        while missing := [r for r, line in self._peers if words[line + seg.STATE] == seg.ABSENT]:
            if not patience.pause():
                raise ReplicaError(f"{_names(missing)} did not join the group in time")

    def _write_round(self, stream: _Stream, sources: list[Tensor], start: int) -> None:
        box = self._next_mailbox()
        if not start:
            head = self._segment.counts[(self._sequence + 1) & 1][self._rank]
            for rank, count in enumerate(stream.counts):
                self._segment.words[head + rank] = count
        for rank, source in enumerate(sources):
            in_box, in_part, length = stream.window(rank, start, self._segment.mailbox_bytes)
            if length:
                _copy(box + in_box, source.data_ptr() + in_part, length)

    def _read_counts(self) -> list[_Stream]:
        words, heads = self._segment.words, self._segment.counts[self._sequence & 1]
        return [_Stream(words[head : head + self.size].tolist()) for head in heads]

    def _read_round(self, streams: list[_Stream], received: list[Tensor], start: int) -> None:
        boxes, box_bytes = self._segment.data[self._sequence & 1], self._segment.mailbox_bytes
        for rank, _ in self._peers:
            in_box, in_part, length = streams[rank].window(self._rank, start, box_bytes)
            if length:
                target = received[rank].data_ptr() + in_part
                _copy(target, boxes[rank] + in_box, length)

    def _check_usable(self) -> None:
        if self._is_closed or self._is_broken:
            state = "closed" if self._is_closed else "broken"
            raise ReplicaError(f"rank {self._rank}: its group is {state}; open a new generation")

    def _fail(
        self, message: str, *, missing: Sequence[int] = (), waited_s: float = 0.0, because: str = ""
    ) -> NoReturn:
        """Break the group for everyone, so that no other rank waits for this one."""
        self._is_broken = True
        self.abort()
        kind = self._segment.words[self._line + seg.KIND + (self._sequence & 1)]
        raise CollectiveError(
            f"rank {self._rank} of {self.size}: {message}",
            collective=_KINDS[kind],
            exchange=self._sequence,
            missing=tuple(missing),
            waited_s=waited_s,
            because=because,
        )


class _Stream:
    """Parts laid end to end and cut into mailboxes: which bytes of a part travel in which."""

    __slots__ = ("counts", "starts", "total")

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.starts: list[int] = []
        self.total = 0
        for count in counts:
            self.starts.append(self.total)
            self.total += count

    def window(self, rank: int, start: int, box_bytes: int) -> tuple[int, int, int]:
        """Offset in the mailbox, offset in the part and bytes, of the mailbox from ``start``."""
        first = max(self.starts[rank], start)
        last = min(self.starts[rank] + self.counts[rank], start + box_bytes)
        return first - start, first - self.starts[rank], max(0, last - first)


def _row_layout(parts: list[Tensor], size: int) -> tuple[torch.Size, int]:
    """Shape and bytes of one row, which all parts must share."""
    dtype, shape = (parts[0].dtype, parts[0].shape[1:]) if parts else (None, torch.Size())
    if len(parts) != size or any(p.dtype != dtype or p.shape[1:] != shape for p in parts):
        raise ValueError(
            f"all_to_all of {[(p.dtype, tuple(p.shape)) for p in parts]}: "
            f"expected {size} parts of one dtype and one shape but for the rows"
        )
    return shape, shape.numel() * parts[0].element_size()


def _rows(num_bytes: int, row_bytes: int) -> int:
    return num_bytes // row_bytes if row_bytes else 0


def _names(ranks: list[int]) -> str:
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(map(str, ranks))


def _check(rank: int, size: int, *, mailbox_bytes: int) -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ConfigError(
            f"shared-memory collectives on {platform.machine()}: their flags are plain stores, "
            f"right on x86-64 only; run this replica with one rank"
        )
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size}: expected 0 <= rank < size")
    if mailbox_bytes < 64 or mailbox_bytes % 64:
        raise ConfigError(f"mailbox_bytes={mailbox_bytes}: expected a multiple of 64")
