"""A wire between two ends of a TCP connection that a test can hold up and cut."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wire:
    """Listens on a port of its own and passes bytes on to ``target``, both ways.

    Attributes:
        port: Where to connect to instead of to the target.
        num_bytes: What went towards the target so far [bytes].
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.num_bytes = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Pass nothing on; what comes is taken and will be lost with the next cut."""
        self._flows.clear()

    def cut(self) -> None:
        """Break every connection as a failing network does, then let bytes flow again."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._flows.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._pairs.append((near, far))
                threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_forward: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._flows.is_set():
                    # Taken from the sender and lost: that is what a cut is about.
                    continue
                target.sendall(data)
                if is_forward:
                    self.num_bytes += len(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(target: tuple[str, int]) -> Iterator[Wire]:
    wire = Wire(target)
    try:
        yield wire
    finally:
        wire.close()
