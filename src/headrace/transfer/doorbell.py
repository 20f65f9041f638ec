"""The doorbell of the shm transport: immediates as authenticated datagrams on a Unix socket.

A datagram carries a run of records under one MAC; an empty one only wakes. A queue that is full
never loses a record: records wait at the sender, travel together later, and fail by name when the
receiver has not drained for ``patience_s``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
from collections import Counter
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.transport import Immediate

# The kernel's ``sockaddr_un.sun_path`` holds 108 bytes with the closing zero.
MAX_PATH_BYTES = 107
MAX_RECORDS = 256
_RECORD = struct.Struct("<QIQQQ")
_MAC_BYTES = 16
_GENERATION = struct.Struct("<Q")
_MAX_DATAGRAM = _MAC_BYTES + _GENERATION.size + MAX_RECORDS * _RECORD.size


class RingCodec:
    """Packs immediates for the owner of one generation, and unpacks what really is for it.

    Args:
        key: Secret of the deployment.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]

    def pack(self, immediates: list[Immediate], *, generation: int) -> bytes:
        """Return one datagram for the rank that has ``generation``; at most ``MAX_RECORDS``."""
        records = b"".join(
            _RECORD.pack(one.imm, one.source_rank, one.generation, one.write_number, one.num_bytes)
            for one in immediates
        )
        body = _GENERATION.pack(generation) + records
        return self._mac(body) + body

    def unpack(self, datagram: bytes, *, generation: int) -> list[Immediate] | None:
        """Return the immediates, or None when the datagram is not for this generation's key."""
        body = datagram[_MAC_BYTES:]
        records = body[_GENERATION.size :]
        if len(body) < _GENERATION.size or len(records) % _RECORD.size:
            return None
        if not hmac.compare_digest(datagram[:_MAC_BYTES], self._mac(body)):
            return None
        if _GENERATION.unpack_from(body)[0] != generation:
            return None
        return [Immediate(*fields) for fields in _RECORD.iter_unpack(records)]

    def _mac(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, key=self._key, digest_size=_MAC_BYTES).digest()


class Doorbell:
    """A bound datagram socket: peers ring it, the owner drains it.

    Args:
        path: Where to bind; minted per generation.
        codec: Authenticates records.
        generation: The owner's generation.
    """

    def __init__(self, path: Path, *, codec: RingCodec, generation: int) -> None:
        self.dropped: Counter[str] = Counter()
        self._path = path
        self._codec = codec
        self._generation = generation
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Bind the socket.

        Raises:
            ConfigError: The path is too long or taken.
        """
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"doorbell path {self._path} has {len(os.fsencode(self._path))} bytes: a Unix "
                f"socket takes {MAX_PATH_BYTES}; choose a shorter run folder"
            )
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.setblocking(False)
        try:
            bell.bind(os.fspath(self._path))
        except OSError as error:
            bell.close()
            raise ConfigError(f"doorbell {self._path}: cannot bind: {error.strerror}") from error
        self._socket = bell

    def fileno(self) -> int:
        """Descriptor of the socket; readable when it was rung."""
        return self._open_socket().fileno()

    def drain(self) -> list[Immediate]:
        """Return every immediate that has come; forged datagrams are counted and dropped."""
        found: list[Immediate] = []
        bell = self._open_socket()
        # A full queue holds few datagrams; the bound keeps a flood from starving the caller.
        for _ in range(MAX_RECORDS):
            try:
                datagram = bell.recv(_MAX_DATAGRAM + 1)
            except BlockingIOError:
                break
            if datagram:
                found += self._take(datagram)
        return found

    def close(self) -> None:
        """Close and unlink; what was not drained is gone. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    def _take(self, datagram: bytes) -> list[Immediate]:
        immediates = self._codec.unpack(datagram, generation=self._generation)
        if immediates is None:
            self.dropped["forged"] += 1
            return []
        return immediates

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError(f"doorbell {self._path} is not open")
        return self._socket


class Ringer:
    """Rings peers' doorbells from one thread, without ever waiting for them.

    Args:
        codec: Authenticates records.
    """

    def __init__(self, codec: RingCodec) -> None:
        self._codec = codec
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Make the sending socket."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self, path: str, immediates: list[Immediate], *, generation: int) -> bool:
        """Send the immediates as one datagram; at most ``MAX_RECORDS``.

        Returns:
            False when the queue of the doorbell is full: try again later.

        Raises:
            OSError: Nobody listens there any more.
        """
        return self._send(self._codec.pack(immediates, generation=generation), path)

    def wake(self, path: str) -> None:
        """Make a doorbell readable; if its queue is full it is readable already."""
        self._send(b"", path)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, datagram: bytes, path: str) -> bool:
        if self._socket is None:
            raise RuntimeError("ringer is not open")
        try:
            self._socket.sendto(datagram, path)
        except BlockingIOError:
            return False
        return True
