"""A rank's sign of life, sent from a thread of its own so that a long step does not silence it.

Alive and stuck look different: the pulse goes on while the process runs, but ``progress`` stands
still while the rank has work it does not get done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from headrace.core.codec import Codec
from headrace.core.messages import Heartbeat
from headrace.transfer.control import ControlSocket


class Pulse:
    """Sends heartbeats until closed.

    Args:
        address: Control address minted for the pulse's own socket.
        codec: The deployment's codec.
        host: See ``ControlSocket``.
        interval_s: Time between beats [s].
        observe: Returns the beat to send; called from the pulse's thread, must only read.
        listeners: Returns the addresses to send to; called likewise.
    """

    def __init__(
        self,
        *,
        address: str,
        codec: Codec,
        host: str = "",
        interval_s: float,
        observe: Callable[[], Heartbeat],
        listeners: Callable[[], Iterable[str]],
    ) -> None:
        self._socket = ControlSocket(address, codec, host=host)
        self._interval_s = interval_s
        self._observe = observe
        self._listeners = listeners
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def open(self) -> None:
        """Start beating."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread to end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        self._socket.open()
        heard: set[str] = set()
        try:
            while not self._stop.is_set():
                beat, listeners = self._observe(), set(self._listeners())
                for address in listeners:
                    self._socket.send(address, beat)
                # Who listens no more may be gone, and its connection would stay for ever.
                for address in heard - listeners:
                    self._socket.forget(address)
                heard = listeners
                self._stop.wait(self._interval_s)
        finally:
            self._socket.close()
