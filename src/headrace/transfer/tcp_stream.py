"""One connected socket: exact reads and whole sends, in few system calls and with patience.

Sockets are blocking, so that a thread sleeps in the kernel until *all* its bytes are there and
takes the interpreter lock once per call, not once per packet. Kernel timeouts wake it to look
whether anything moved. ``cut`` from another thread ends whatever is under way.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence

from headrace.core.errors import TransferError

# What one ``sendmsg`` or ``recvmsg`` takes (``IOV_MAX`` of Linux).
MAX_VECTORS = 1024
# Longest sleep in the kernel before progress is looked at [s].
_TICK_S = 1.0
# A host that is gone says nothing: the kernel asks this often whether a silent one still lives.
_KEEPALIVE_S = 10
_TIMEVAL = struct.Struct("@ll")


class Stream:
    """One end of a connection.

    Args:
        sock: Connected TCP socket; owned by the stream from here on.
        patience_s: How long a transfer that began may stand still [s].

    Raises:
        TransferError: From every transfer: the peer closed, was cut off, or stood still.
        OSError: From every transfer: the connection broke.
    """

    def __init__(self, sock: socket.socket, *, patience_s: float) -> None:
        self._sock = sock
        self._patience_s = patience_s

    def prepare(self) -> None:
        """Set what the socket needs; the peer is alive or found dead within the patience.

        Buffer sizes are left to the kernel: set by hand they are smaller and stop adapting.
        """
        tick = _TIMEVAL.pack(int(_TICK_S), int(_TICK_S % 1 * 1_000_000))
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp = socket.IPPROTO_TCP
        self._sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(tcp, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._sock.setsockopt(tcp, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        self._sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(self._patience_s * 1000))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def read(self, view: memoryview, *, may_wait: bool = False) -> None:
        """Fill ``view``.

        Args:
            view: Writable bytes.
            may_wait: The first byte may come whenever it likes: nothing is under way yet.
        """
        self.scatter([view], may_wait=may_wait)

    def read_by(self, deadline_s: float, num_bytes: int) -> bytes:
        """Return bytes that come before a monotonic time, however slowly; for handshakes."""
        view = memoryview(bytearray(num_bytes))
        filled = 0
        while filled < num_bytes:
            if time.monotonic() > deadline_s:
                raise TransferError("the handshake took too long")
            with contextlib.suppress(BlockingIOError):
                count = self._sock.recv_into(view[filled:])
                if not count:
                    raise TransferError("the connection was closed during the handshake")
                filled += count
        return bytes(view)

    def scatter(self, views: Sequence[memoryview], *, may_wait: bool = False) -> None:
        """Fill every view in order; at most ``MAX_VECTORS`` of them, none empty."""
        left = list(views)
        moved_s = time.monotonic()
        while left:
            try:
                count = self._sock.recvmsg_into(left, 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                self._check_patience(moved_s, may_wait=may_wait)
                continue
            if not count:
                raise TransferError("the connection was closed")
            may_wait = False
            moved_s = time.monotonic()
            left = _after(left, count)

    def gather(self, views: Sequence[bytes | memoryview]) -> None:
        """Send all bytes of every view in order; at most ``MAX_VECTORS`` of them, none empty."""
        left: list[memoryview] = [memoryview(view) for view in views]
        moved_s = time.monotonic()
        while left:
            try:
                count = self._sock.sendmsg(left)
            except BlockingIOError:
                self._check_patience(moved_s, may_wait=False)
                continue
            moved_s = time.monotonic()
            left = _after(left, count)

    def cut(self) -> None:
        """End the connection from any thread: both sides' transfers return at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, once no thread uses it."""
        self._sock.close()

    def _check_patience(self, moved_s: float, *, may_wait: bool) -> None:
        if not may_wait and time.monotonic() - moved_s > self._patience_s:
            raise TransferError(f"nothing moved for {self._patience_s} s")


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of ``views`` when ``count`` of their bytes are done."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
