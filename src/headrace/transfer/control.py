"""Control sockets: every process binds one and pushes to its peers' addresses."""

from __future__ import annotations

from headrace.core.messages import AnyMessage, Codec, Message


class ControlSocket:
    """One process's end of the control plane: binds ``address``, pushes to anyone's.

    Args:
        address: ``ipc://PATH`` or ``tcp://HOST:PORT`` to bind.
        codec: The deployment's codec.

    All methods are called from one thread. Sending never blocks.
    """

    def __init__(self, address: str, codec: Codec) -> None: ...

    def open(self) -> None:
        """Bind. Raises ``ConfigError`` when the address is taken or too long."""

    def send(self, address: str, message: Message) -> bool:
        """Queue a message; False when the peer's queue is full (counted as dropped)."""
        return True

    def recv_all(self, limit: int = 1024) -> list[AnyMessage]:
        """Return what has come, without waiting; bad frames are dropped and counted."""
        return []

    def wait(self, timeout_s: float, *filenos: int) -> bool:
        """Sleep until a message, one of the descriptors, or the timeout; False on timeout."""
        return False

    def forget(self, address: str) -> None:
        """Close the connection to a peer that is gone, dropping what it has not taken."""

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name."""
        return {}

    def close(self, linger_s: float = 0.0) -> None:
        """Unbind and close everything; waits at most ``linger_s`` for queued messages to leave."""


class AsyncControlSocket:
    """The same for an event loop: ``recv`` is a coroutine, ``send`` still never waits."""

    def __init__(self, address: str, codec: Codec) -> None: ...

    def open(self) -> None:
        """Bind, inside a running loop."""

    def send(self, address: str, message: Message) -> bool:
        """See ``ControlSocket.send``."""
        return True

    async def recv(self) -> AnyMessage:
        """Return the next message; bad frames are dropped and counted."""
        raise NotImplementedError

    def forget(self, address: str) -> None:
        """See ``ControlSocket.forget``."""

    def counters(self) -> dict[str, float]:
        """See ``ControlSocket.counters``."""
        return {}

    def close(self, linger_s: float = 0.0) -> None:
        """See ``ControlSocket.close``."""
