"""Control sockets: every process binds one and pushes to its peers' addresses.

Frames are ``core.messages``; what does not authenticate or parse is dropped and counted. Nothing
here waits for a peer: a queue is bounded, and a message that finds it full is refused. In a
deployment that spans hosts every frame travels on a link (``control_link``), which outlives a
connection that breaks.
"""

from __future__ import annotations

import contextlib
import errno
from collections import Counter, deque
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from headrace.core.codec import MAX_FRAME_BYTES, Codec
from headrace.core.errors import ConfigError, ProtocolError
from headrace.core.messages import AnyMessage, Message
from headrace.transfer.control_link import ACK_EVERY, LINK_BYTES, Incoming, Outgoing, Seal

# Messages that may wait for one peer. A live peer drains thousands a second; a dead one is held
# until its address is forgotten.
MAX_QUEUED = 4096
COUNTS = ("sent", "refused", "received", "bad_frames", "repeated", "early", "resent")
# How often an event loop looks after its links at least.
SERVICE_MS = 200
_IPC = "ipc://"
# What connecting says of a text that is no address of a peer.
_NO_ADDRESS = (
    errno.EINVAL,
    errno.ENAMETOOLONG,
    errno.ENODEV,
    zmq.EPROTONOSUPPORT,
    zmq.ENOCOMPATPROTO,
)
# libzmq puts the path into a ``sockaddr_un`` of 108 bytes with the closing zero.
_MAX_IPC_BYTES = 107


class ControlSocket:
    """One process's end of the control plane: binds its address, pushes to anyone's.

    Args:
        address: ``ipc://PATH`` or ``tcp://HOST:PORT`` to bind.
        codec: The deployment's codec.
        host: Address of this host to listen on as well, at a free port, for peers on other hosts;
            empty in a deployment that has none. All its sockets must agree in that.

    Attributes:
        address: What peers send to; with a host it is known once the socket is open.

    All methods are called from one thread.
    """

    def __init__(self, address: str, codec: Codec, *, host: str = "") -> None:
        self.address = address
        self._local_address = address
        self._codec = codec
        self._host = host
        self._seal = Seal(codec)
        self._incoming: Incoming | None = None
        self._outgoing: dict[str, Outgoing] = {}
        self._num_unacked = 0
        self._counts: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pull: zmq.Socket[bytes] | None = None
        self._peers: dict[str, zmq.Socket[bytes]] = {}

    def open(self) -> None:
        """Bind.

        Raises:
            ConfigError: The address is taken, too long, or not one.
        """
        _check_length(self._local_address)
        context = zmq.Context()
        pull = context.socket(zmq.ROUTER if self._host else zmq.PULL)
        pull.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + LINK_BYTES)
        pull.setsockopt(zmq.RCVHWM, MAX_QUEUED)
        pull.setsockopt(zmq.LINGER, 0)
        wanted = [self._local_address, *([f"tcp://{self._host}:0"] if self._host else [])]
        for address in wanted:
            try:
                pull.bind(address)
            except zmq.ZMQError as error:
                context.destroy(linger=0)
                raise ConfigError(f"control address {address}: cannot bind: {error}") from error
        self._context, self._pull = context, pull
        if self._host:
            self.address = pull.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
            addresses = (self.address, self._local_address)
            self._incoming = Incoming(addresses, seal=self._seal, counts=self._counts)

    @property
    def pull(self) -> zmq.Socket[bytes]:
        """The bound socket, for pollers that wait on several things."""
        if self._pull is None:
            raise RuntimeError(f"control socket {self.address} is not open")
        return self._pull

    def send(self, address: str, message: Message) -> bool:
        """Queue a message for a peer; never waits.

        Returns:
            False when the peer's queue is full (it is stuck or gone), or its address is none; the
            message is dropped and counted.
        """
        is_queued = self._put(address, self._codec.encode(message))
        self._counts["sent" if is_queued else "refused"] += 1
        return is_queued

    def recv_all(self, limit: int = 1024) -> list[AnyMessage]:
        """Return up to ``limit`` messages that have come, without waiting."""
        found: list[AnyMessage] = []
        for _ in range(limit):
            try:
                parts = self.pull.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            message = self.decode(parts)
            if message is not None:
                found.append(message)
        self.service()
        return found

    def decode(self, parts: list[bytes]) -> AnyMessage | None:
        """Return the message that came, or None for one that must not be believed."""
        frame = self._take(parts)
        if frame is None:
            return None
        try:
            message = self._codec.decode(frame)
        except ProtocolError:
            self._counts["bad_frames"] += 1
            return None
        self._counts["received"] += 1
        return message

    def service(self) -> None:
        """Acknowledge what came, and send again what a broken connection may have lost.

        Links need it several times a minute; ``recv_all``, ``send`` and ``wait`` see to it.
        """
        for link in self._outgoing.values():
            link.service()
        if self._incoming is None:
            return
        self._num_unacked = 0
        for identity, ack in self._incoming.acks():
            # The next one says the same and more.
            with contextlib.suppress(zmq.Again):
                self.pull.send_multipart([identity, ack], zmq.DONTWAIT)

    def wait(self, timeout_s: float, *filenos: int) -> bool:
        """Sleep until a message has come, a descriptor is readable, or the time is over.

        Returns:
            False when the time was over.
        """
        self.service()
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
        link = self._outgoing.pop(address, None)
        if link is not None:
            link.close()

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name. Any thread may call."""
        return {f"headrace_control_{name}_total": float(self._counts[name]) for name in COUNTS}

    def close(self, linger_s: float = 0.0) -> None:
        """Unbind and close everything. Idempotent.

        Args:
            linger_s: How long queued messages may take to leave; 0 drops them.
        """
        if self._context is None:
            return
        for link in self._outgoing.values():
            link.close(linger_s)
        self._outgoing.clear()
        self._context.destroy(linger=round(linger_s * 1000))
        self._context, self._pull = None, None
        self._peers.clear()
        if self._local_address.startswith(_IPC):
            with contextlib.suppress(FileNotFoundError):
                Path(self._local_address.removeprefix(_IPC)).unlink()

    def _put(self, address: str, frame: bytes) -> bool:
        try:
            if self._host:
                return self._link(address).send(frame)
            self._peer(address).send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            # Addresses come in messages: what is not one must not end whoever answers.
            if error.errno not in _NO_ADDRESS:
                raise
            return False
        return True

    def _take(self, parts: list[bytes]) -> bytes | None:
        if self._incoming is None and len(parts) == 1:
            return parts[0]
        if self._incoming is None or len(parts) != 2:
            self._counts["bad_frames"] += 1
            return None
        frame = self._incoming.take(*parts)
        self._num_unacked += 1
        if self._num_unacked >= ACK_EVERY:
            self.service()
        return frame

    def _link(self, address: str) -> Outgoing:
        if address not in self._outgoing:
            if self._context is None:
                raise RuntimeError(f"control socket {self.address} is not open")
            self._outgoing[address] = Outgoing(
                self._context,
                address,
                seal=self._seal,
                max_unacked=MAX_QUEUED,
                counts=self._counts,
            )
        return self._outgoing[address]

    def _peer(self, address: str) -> zmq.Socket[bytes]:
        if address not in self._peers:
            if self._context is None:
                raise RuntimeError(f"control socket {self.address} is not open")
            peer = self._context.socket(zmq.PUSH)
            peer.setsockopt(zmq.SNDHWM, MAX_QUEUED)
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.RECONNECT_IVL, 10)
            peer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            try:
                peer.connect(address)
            except zmq.ZMQError:
                peer.close()
                raise
            self._peers[address] = peer
        return self._peers[address]


class AsyncControlSocket:
    """The same for an event loop: ``recv`` is a coroutine, ``send`` still never waits.

    Args:
        address: Address to bind.
        codec: The deployment's codec.
        host: See ``ControlSocket``.
    """

    def __init__(self, address: str, codec: Codec, *, host: str = "") -> None:
        self._control = ControlSocket(address, codec, host=host)
        self._host = host
        self._pull: Any = None
        self._arrived: deque[AnyMessage] = deque()

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
        if self._host:
            return await self._recv_linked()
        while True:
            message = self._control.decode(await self._pull.recv_multipart())
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

    async def _recv_linked(self) -> AnyMessage:
        # Acknowledgements leave through the socket that is waited on here, and sending may swallow
        # its wake-up: so all use of it is in one place, and a poll looks before it sleeps.
        while not self._arrived:
            self._arrived.extend(self._control.recv_all())
            if not self._arrived:
                await self._pull.poll(SERVICE_MS)
        return self._arrived.popleft()


def _check_length(address: str) -> None:
    if not address.startswith(_IPC):
        return
    num_bytes = len(address.removeprefix(_IPC).encode())
    if num_bytes > _MAX_IPC_BYTES:
        raise ConfigError(
            f"control address {address} has a path of {num_bytes} bytes: a Unix socket takes "
            f"{_MAX_IPC_BYTES}; choose a shorter run folder"
        )
