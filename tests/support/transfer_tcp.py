"""Peers of a tcp transport that the tests drive byte by byte: a writer, and an owner."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Sequence

from headrace.transfer.tcp_frames import HEAD_BYTES, Frame, FrameCodec, Kind, Range
from headrace.transfer.tcp_handshake import (
    CHALLENGE_BYTES,
    NONCE_BYTES,
    PREFIX_BYTES,
    PROOF_BYTES,
    PROTOCOL_VERSION,
    VERDICT_BYTES,
    Hello,
    OwnerHandshake,
    Verdict,
    WriterHandshake,
)
from tests.support.transfer_world import KEY, PATIENCE_S


def make_hello(
    *,
    owner: str = "prefill.3",
    rank: int = 3,
    generation: int = 7,
    target_generation: int = 4,
    link: bytes = b"link",
    version: int = PROTOCOL_VERSION,
) -> Hello:
    """Return what a writer says first; by default the one that ``grant_all`` is for."""
    return Hello(
        version=version,
        owner=owner,
        rank=rank,
        generation=generation,
        target_generation=target_generation,
        link=link,
        nonce=secrets.token_bytes(NONCE_BYTES),
    )


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread brings about."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.001)


class RawWriter:
    """A writer's socket: handshakes, then sends whatever bytes it is told to."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.codec = FrameCodec(b"none")
        self.answers = FrameCodec(b"none")

    def shake_hands(self, hello: Hello | None = None, *, key: bytes = KEY) -> RawWriter:
        """Open as ``hello`` says; raises ProtocolError when the owner does not agree."""
        handshake = WriterHandshake(key, hello or make_hello())
        self.sock.sendall(handshake.hello())
        self.sock.sendall(handshake.prove(self.read(CHALLENGE_BYTES)))
        keys = handshake.finish(self.read(VERDICT_BYTES))
        self.codec, self.answers = FrameCodec(keys.to_owner), FrameCodec(keys.to_writer)
        return self

    def head(
        self,
        ranges: Sequence[Range],
        *,
        imm: int = 0,
        write: int = 0,
        region: int = 0,
        total: int | None = None,
    ) -> bytes:
        """Return head and table of a write."""
        payload = sum(size for _, size in ranges)
        frame = Frame(
            kind=Kind.WRITE,
            imm=imm,
            write=write,
            region=region,
            total_bytes=payload if total is None else total,
            payload_bytes=payload,
        )
        return self.codec.pack(frame, ranges)

    def write(self, ranges: Sequence[Range], payload: bytes, **head: int) -> None:
        """Send one whole frame."""
        self.sock.sendall(self.head(ranges, **head) + payload)

    def fence(self, imm: int = 0, *, number: int = 0) -> int:
        """Send a fence and return what the owner refused of the session, a ``Refusal``."""
        self.sock.sendall(self.codec.pack(Frame(kind=Kind.FENCE, imm=imm, write=number)))
        head = self.read(HEAD_BYTES)
        frame = self.answers.unpack(head)
        self.answers.check(frame, head, b"")
        assert (frame.kind, frame.imm, frame.write) == (Kind.FENCE_READ, imm, number)
        return frame.region

    def push(self, data: bytes, *, is_last: bool = False) -> None:
        """Send bytes that the owner may answer by closing while they are on the way."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)
            if is_last:
                self.sock.shutdown(socket.SHUT_WR)

    def read(self, num_bytes: int) -> bytes:
        """Return exactly so many bytes, fewer only at the end of the connection."""
        found = b""
        while len(found) < num_bytes and (more := self.sock.recv(num_bytes - len(found))):
            found += more
        return found

    def is_ended(self) -> bool:
        """Wait for the end of the connection; False if anything else comes."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()


class RawOwner:
    """An owner's listening socket: shakes hands, then reads only what it is told to."""

    def __init__(self, *, key: bytes = KEY) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_S)
        self.sockets: list[socket.socket] = []
        self.codecs: list[tuple[FrameCodec, FrameCodec]] = []
        self._key = key

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self, number: int, *, verdict: Verdict = Verdict.TAKEN) -> None:
        """Take so many sockets of a link."""
        for _ in range(number):
            sock, _ = self.listener.accept()
            sock.settimeout(PATIENCE_S)
            self.sockets.append(sock)
            handshake = OwnerHandshake(self._key)
            prefix = _read(sock, PREFIX_BYTES)
            _, challenge = handshake.challenge(_read(sock, handshake.hello_bytes(prefix)))
            sock.sendall(challenge)
            keys = handshake.finish(_read(sock, PROOF_BYTES))
            sock.sendall(handshake.verdict(keys, verdict))
            self.codecs.append((FrameCodec(keys.to_owner), FrameCodec(keys.to_writer)))

    def read_frame(self, index: int) -> tuple[Frame, list[Range], bytes]:
        """Return the next frame of a socket with its payload."""
        sock, codec = self.sockets[index], self.codecs[index][0]
        head = _read(sock, HEAD_BYTES)
        frame = codec.unpack(head)
        ranges = codec.check(frame, head, _read(sock, frame.table_bytes))
        return frame, ranges, _read(sock, frame.payload_bytes)

    def answer(self, index: int, frame: Frame, *, refusal: int = 0) -> None:
        """Say that a fence was read."""
        reply = Frame(kind=Kind.FENCE_READ, imm=frame.imm, write=frame.write, region=refusal)
        self.sockets[index].sendall(self.codecs[index][1].pack(reply))

    def close(self) -> None:
        for sock in [*self.sockets, self.listener]:
            sock.close()


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    found = b""
    while len(found) < num_bytes:
        more = sock.recv(num_bytes - len(found))
        assert more, "the connection ended"
        found += more
    return found
