"""Control frames between hosts: numbered, so that a broken connection loses and repeats nothing.

A sender numbers its frames for each peer and keeps them until the peer has acknowledged them; when
a connection broke and is there again, it sends what is not acknowledged once more. The receiver
takes each number once and in order. The authentication code covers sender, number and the address
that the frame is for, so that a frame recorded on the wire is of no use to anybody.

    sealed frame     code(16) sender(16) number(8) frame
    acknowledgement  code(16) number(8), the number that is expected next
"""

from __future__ import annotations

import contextlib
import hmac
import os
import struct
from collections import Counter, deque
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from headrace.core.codec import HEADER_BYTES, MAC_BYTES, Codec

_NUMBER = struct.Struct("!Q")
_SENDER_BYTES = 16
LINK_BYTES = MAC_BYTES + _SENDER_BYTES + _NUMBER.size
# Frames that a receiver takes before it acknowledges without being asked to.
ACK_EVERY = 64
# A connection on which nothing comes for so long is taken for broken, and made anew [ms].
_HEARTBEAT_MS = 2_000
_SILENCE_MS = 10_000


class Seal:
    """Makes and checks the codes of one deployment's links.

    Args:
        codec: The deployment's codec; its frames carry a code of their payload already.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def frame(self, address: str, sender: bytes, number: int, frame: bytes) -> bytes:
        """Return ``frame`` sealed for ``address``."""
        stamp = sender + _NUMBER.pack(number)
        return self._frame_code(address, stamp, frame) + stamp + frame

    def open(self, sealed: bytes, *addresses: str) -> tuple[bytes, int, bytes] | None:
        """Return sender, number and frame; None when it is not for one of ``addresses``."""
        code, stamp = sealed[:MAC_BYTES], sealed[MAC_BYTES:LINK_BYTES]
        frame = sealed[LINK_BYTES:]
        if len(frame) < HEADER_BYTES:
            return None
        for address in addresses:
            if hmac.compare_digest(code, self._frame_code(address, stamp, frame)):
                number = _NUMBER.unpack(stamp[_SENDER_BYTES:])[0]
                return stamp[:_SENDER_BYTES], number, frame
        return None

    def ack(self, sender: bytes, number: int) -> bytes:
        """Return the acknowledgement of everything of ``sender`` before ``number``."""
        packed = _NUMBER.pack(number)
        return self._codec.seal(sender + packed, purpose=b"control-ack") + packed

    def open_ack(self, ack: bytes, sender: bytes) -> int | None:
        """Return the number of an acknowledgement; None when it is not one for ``sender``."""
        if len(ack) != MAC_BYTES + _NUMBER.size:
            return None
        number = int(_NUMBER.unpack(ack[MAC_BYTES:])[0])
        return number if hmac.compare_digest(ack, self.ack(sender, number)) else None

    def _frame_code(self, address: str, stamp: bytes, frame: bytes) -> bytes:
        # The frame's header holds the code of its payload.
        data = address.encode() + b"\0" + stamp + frame[:HEADER_BYTES]
        return self._codec.seal(data, purpose=b"control-link")


class Outgoing:
    """The sender's end of one link. One thread.

    Args:
        context: Where its socket lives.
        address: The peer's control address.
        seal: See there.
        max_unacked: Frames kept for the peer at most.
        counts: Counters of the owner, by short name.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        seal: Seal,
        max_unacked: int,
        counts: Counter[str],
    ) -> None:
        self._address = address
        self._seal = seal
        self._max_unacked = max_unacked
        self._counts = counts
        self._sender = os.urandom(_SENDER_BYTES)
        self._first = 0
        self._unacked: deque[bytes] = deque()
        self._num_connected = 0
        self._must_resend = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # Everything kept may be queued a second time while it is sent again.
        self._socket.setsockopt(zmq.SNDHWM, 2 * max_unacked)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            self._socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, frame: bytes) -> bool:
        """Queue a frame; False when the peer has not acknowledged ``max_unacked`` others."""
        self.service()
        if len(self._unacked) >= self._max_unacked:
            return False
        number = self._first + len(self._unacked)
        sealed = self._seal.frame(self._address, self._sender, number, frame)
        self._unacked.append(sealed)
        self._put(sealed)
        return True

    def service(self) -> None:
        """Take acknowledgements; send again what a broken connection may have lost."""
        self._take_acks()
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._num_connected += 1
            self._must_resend = self._num_connected > 1
        if self._must_resend:
            self._must_resend = False
            self._counts["resent"] += len(self._unacked)
            for sealed in self._unacked:
                self._put(sealed)

    def close(self, linger_s: float = 0.0) -> None:
        """Close; what was not delivered within ``linger_s`` is dropped."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=round(linger_s * 1000))

    def _put(self, sealed: bytes) -> None:
        try:
            self._socket.send(sealed, zmq.DONTWAIT)
        except zmq.Again:
            # It stays among the unacknowledged; without it the peer takes none of the later ones.
            self._must_resend = True

    def _take_acks(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                number = self._seal.open_ack(self._socket.recv(zmq.DONTWAIT), self._sender)
                if number is None or number > self._first + len(self._unacked):
                    self._counts["bad_frames"] += 1
                    continue
                while self._first < number:
                    self._unacked.popleft()
                    self._first += 1


class Incoming:
    """The receiver's end of all links to one socket. One thread.

    Args:
        addresses: What peers know the socket by.
        seal: See there.
        counts: Counters of the owner, by short name.
    """

    def __init__(self, addresses: tuple[str, ...], *, seal: Seal, counts: Counter[str]) -> None:
        self._addresses = addresses
        self._seal = seal
        self._counts = counts
        # Only who holds the key gets an entry: as many as there are sockets in the deployment.
        self._expected: dict[bytes, int] = {}
        self._owed: dict[bytes, bytes] = {}

    def take(self, identity: bytes, sealed: bytes) -> bytes | None:
        """Return the frame, or None when it is not authentic, not new, or not next."""
        opened = self._seal.open(sealed, *self._addresses)
        if opened is None:
            self._counts["bad_frames"] += 1
            return None
        sender, number, frame = opened
        expected = self._expected.setdefault(sender, 0)
        self._owed[sender] = identity
        if number != expected:
            self._counts["repeated" if number < expected else "early"] += 1
            return None
        self._expected[sender] = number + 1
        return frame

    def acks(self) -> list[tuple[bytes, bytes]]:
        """Return the acknowledgements that are owed, each with the identity of its receiver."""
        owed, self._owed = self._owed, {}
        return [(to, self._seal.ack(who, self._expected[who])) for who, to in owed.items()]
