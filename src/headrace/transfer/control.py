"""Control sockets: every process binds one and pushes to its peers' addresses.

Frames are ``core.messages``; what does not authenticate or parse is dropped and counted. Nothing
here waits for a peer: a queue is bounded, and a message that finds it full is refused.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from headrace.core.codec import MAX_FRAME_BYTES, Codec
from headrace.core.errors import ConfigError, ProtocolError
from headrace.core.messages import AnyMessage, Message

# Messages that may wait for one peer. A live peer drains thousands a second; a dead one is held
# until its address is forgotten.
MAX_QUEUED = 4096
_IPC = "ipc://"
# libzmq puts the path into a ``sockaddr_un`` of 108 bytes with the closing zero.
_MAX_IPC_BYTES = 107


class ControlSocket:
    """One process's end of the control plane: binds its address, pushes to anyone's.

    Args:
        address: ``ipc://PATH`` or ``tcp://HOST:PORT`` to bind.
        codec: The deployment's codec.

    All methods are called from one thread.
    """

    def __init__(self, address: str, codec: Codec) -> None:
        self.address = address
        self._codec = codec
        self._counts: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pull: zmq.Socket[bytes] | None = None
        self._peers: dict[str, zmq.Socket[bytes]] = {}

    def open(self) -> None:
        """Bind.

        Raises:
            ConfigError: The address is taken, too long, or not one.
        """
        _check_length(self.address)
        context = zmq.Context()
        pull = context.socket(zmq.PULL)
        pull.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        pull.setsockopt(zmq.RCVHWM, MAX_QUEUED)
        pull.setsockopt(zmq.LINGER, 0)
        try:
            pull.bind(self.address)
        except zmq.ZMQError as error:
            context.destroy(linger=0)
            raise ConfigError(f"control address {self.address}: cannot bind: {error}") from error
        self._context, self._pull = context, pull

    @property
    def pull(self) -> zmq.Socket[bytes]:
        """The bound socket, for pollers that wait on several things."""
        if self._pull is None:
            raise RuntimeError(f"control socket {self.address} is not open")
        return self._pull

    def send(self, address: str, message: Message) -> bool:
        """Queue a message for a peer; never waits.

        Returns:
            False when the peer's queue is full (it is stuck or gone); the message is dropped and
            counted.
        """
        frame = self._codec.encode(message)
        try:
            self._peer(address).send(frame, zmq.DONTWAIT)
        except zmq.Again:
            self._counts["refused"] += 1
            return False
        self._counts["sent"] += 1
        return True

    def recv_all(self, limit: int = 1024) -> list[AnyMessage]:
        """Return up to ``limit`` messages that have come, without waiting."""
        found: list[AnyMessage] = []
        for _ in range(limit):
            try:
                frame = self.pull.recv(zmq.DONTWAIT)
            except zmq.Again:
                break
            message = self.decode(frame)
            if message is not None:
                found.append(message)
        return found

    def decode(self, frame: bytes) -> AnyMessage | None:
        """Return the message of a frame, or None for one that must not be believed."""
        try:
            message = self._codec.decode(frame)
        except ProtocolError:
            self._counts["bad_frames"] += 1
            return None
        self._counts["received"] += 1
        return message

    def wait(self, timeout_s: float, *filenos: int) -> bool:
        """Sleep until a message has come, a descriptor is readable, or the time is over.

        Returns:
            False when the time was over.
        """
        poller = zmq.Poller()
        poller.register(self.pull, zmq.POLLIN)
        for fileno in filenos:
            poller.register(fileno, zmq.POLLIN)
        return bool(poller.poll(max(0, round(timeout_s * 1000))))

    def forget(self, address: str) -> None:
        """Close the connection to a peer that is gone, with what it has not taken."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            peer.close(linger=0)

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name. Any thread may call."""
        return {
            f"headrace_control_{name}_total": float(self._counts[name])
            for name in ("sent", "refused", "received", "bad_frames")
        }

    def close(self, linger_s: float = 0.0) -> None:
        """Unbind and close everything. Idempotent.

        Args:
            linger_s: How long queued messages may take to leave; 0 drops them.
        """
        if self._context is None:
            return
        self._context.destroy(linger=round(linger_s * 1000))
        self._context, self._pull = None, None
        self._peers.clear()
        if self.address.startswith(_IPC):
            with contextlib.suppress(FileNotFoundError):
                Path(self.address.removeprefix(_IPC)).unlink()

    def _peer(self, address: str) -> zmq.Socket[bytes]:
        if address not in self._peers:
            if self._context is None:
                raise RuntimeError(f"control socket {self.address} is not open")
            peer = self._context.socket(zmq.PUSH)
            peer.setsockopt(zmq.SNDHWM, MAX_QUEUED)
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.RECONNECT_IVL, 10)
            peer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            peer.connect(address)
            self._peers[address] = peer
        return self._peers[address]


class AsyncControlSocket:
    """The same for an event loop: ``recv`` is a coroutine, ``send`` still never waits.

    Args:
        address: Address to bind.
        codec: The deployment's codec.
    """

    def __init__(self, address: str, codec: Codec) -> None:
        self._control = ControlSocket(address, codec)
        self._pull: Any = None

    @property
    def address(self) -> str:
        """Where peers send to."""
        return self._control.address

    def open(self) -> None:
        """Bind, inside a running loop; see ``ControlSocket.open``."""
        self._control.open()
        self._pull = zmq.asyncio.Socket.shadow(self._control.pull)

    def send(self, address: str, message: Message) -> bool:
        """See ``ControlSocket.send``."""
        return self._control.send(address, message)

    async def recv(self) -> AnyMessage:
        """Return the next message; bad frames are dropped and counted."""
        while True:
            message = self._control.decode(await self._pull.recv())
            if message is not None:
                return message

    def forget(self, address: str) -> None:
        """See ``ControlSocket.forget``."""
        self._control.forget(address)

    def counters(self) -> dict[str, float]:
        """See ``ControlSocket.counters``."""
        return self._control.counters()

    def close(self, linger_s: float = 0.0) -> None:
        """See ``ControlSocket.close``; a pending ``recv`` is cancelled."""
        if self._pull is not None:
            self._pull.close()
            self._pull = None
        self._control.close(linger_s)


def _check_length(address: str) -> None:
    if not address.startswith(_IPC):
        return
    num_bytes = len(address.removeprefix(_IPC).encode())
    if num_bytes > _MAX_IPC_BYTES:
        raise ConfigError(
            f"control address {address} has a path of {num_bytes} bytes: a Unix socket takes "
            f"{_MAX_IPC_BYTES}; choose a shorter run folder"
        )
