"""The receiving side of the tcp transport: a listener, and one thread per data socket.

A thread sleeps in the kernel until a frame comes, has it judged by the grants, and lets the kernel
put the bytes straight into the region. What is refused is read into scrap and counted, so that
the frames behind it still come; what is not authentic closes the connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.core.errors import ConfigError, ProtocolError, TransferError
from headrace.core.transport import Immediate
from headrace.transfer.grants import Grants, Visit, Writer
from headrace.transfer.tally import Tally
from headrace.transfer.tcp_frames import (
    HEAD_BYTES,
    MAX_FRAGMENTS,
    Frame,
    FrameCodec,
    Kind,
    Refusal,
)
from headrace.transfer.tcp_handshake import (
    PREFIX_BYTES,
    PROOF_BYTES,
    Hello,
    Keys,
    OwnerHandshake,
    Verdict,
)
from headrace.transfer.tcp_stream import Stream

# Sockets that one link may have, and connections whose handshake is not over.
MAX_LINK_SOCKETS = 16
MAX_HANDSHAKES = 64
# Sessions of which a socket remembers that bytes were refused, until they are asked for.
MAX_REFUSALS = 256
_SCRAP_BYTES = 64 << 10
_BACKLOG = 128


@dataclass(slots=True)
class _Peer:
    """The sockets of the one link that a writer has with this rank."""

    generation: int
    link: bytes
    streams: set[Stream] = field(default_factory=set)


class Receiver:
    """Accepts writers and puts their bytes where they are granted.

    Args:
        host: Address to bind; peers must be able to reach it.
        key: Secret of the deployment.
        generation: This rank's generation: a writer that means another is refused.
        grants: What may be written.
        deliver: Takes each immediate, from any thread.
        handshake_s: How long a handshake may take [s].
        patience_s: How long a frame may stand still [s].
    """

    def __init__(
        self,
        *,
        host: str,
        key: bytes,
        generation: int,
        grants: Grants,
        deliver: Callable[[Immediate], None],
        handshake_s: float,
        patience_s: float,
    ) -> None:
        self.counts = Tally()
        self.port = 0
        self._host = host
        self._key = key
        self._generation = generation
        self._grants = grants
        self._deliver = deliver
        self._handshake_s = handshake_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._streams: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self._num_handshakes = 0
        self._is_closing = False
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def open(self) -> None:
        """Bind a port of the kernel's choice and start to accept.

        Raises:
            ConfigError: The host is not an address of this machine.
        """
        try:
            family = socket.getaddrinfo(self._host, 0, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((self._host, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"host {self._host!r}: cannot listen there: {error.strerror}; expected an address "
                f"of this machine"
            ) from error
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(
            target=self._accept, args=(self._listener,), name="headrace-tcp-accept", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Cut every connection, end every thread, free the port. Idempotent."""
        if self._listener is None or self._acceptor is None:
            return
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self._listener = None
        with self._lock:
            threads = list(self._threads)
            for stream in self._streams:
                stream.cut()
        for thread in threads:
            thread.join()

    def num_connections(self) -> int:
        """Return how many sockets are open, handshakes included."""
        return len(self._streams)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._has_closed():
                    return
                # No descriptors left, or the peer was gone again: neither ends the listener.
                self.counts.add(refused_connections=1)
                time.sleep(0.01)
                continue
            stream = Stream(sock, patience_s=self._patience_s)
            with self._lock:
                if self._num_handshakes >= MAX_HANDSHAKES:
                    self.counts.add(refused_connections=1)
                    stream.close()
                    continue
                self._num_handshakes += 1
                thread = threading.Thread(
                    target=self._serve, args=(stream,), name="headrace-tcp-receive", daemon=True
                )
                self._streams.add(stream)
                self._threads.add(thread)
            thread.start()

    def _has_closed(self) -> bool:
        return self._is_closing

    def _serve(self, stream: Stream) -> None:
        """Run one connection to its end; nothing that it sends can end anything else."""
        hello: Hello | None = None
        try:
            hello, keys = self._shake_hands(stream)
            if hello is not None:
                writer = Writer(hello.owner, hello.rank, hello.generation)
                self._receive(stream, writer, keys)
        except (ProtocolError, TransferError, OSError) as error:
            if hello is None:
                self.counts.add(failed_handshakes=1)
            elif isinstance(error, ProtocolError):
                self.counts.add(bad_frames=1)
        finally:
            self._forget(stream, hello)

    def _shake_hands(self, stream: Stream) -> tuple[Hello | None, Keys]:
        handshake = OwnerHandshake(self._key)
        try:
            deadline_s = time.monotonic() + self._handshake_s
            stream.prepare()
            prefix = stream.read_by(deadline_s, PREFIX_BYTES)
            said = stream.read_by(deadline_s, handshake.hello_bytes(prefix))
            hello, challenge = handshake.challenge(said)
            stream.gather([challenge])
            keys = handshake.finish(stream.read_by(deadline_s, PROOF_BYTES))
        finally:
            with self._lock:
                self._num_handshakes -= 1
        verdict = self._judge(hello, stream)
        is_taken = verdict is Verdict.TAKEN
        if not is_taken:
            self.counts.add(refused_connections=1)
        stream.gather([handshake.verdict(keys, verdict)])
        return hello if is_taken else None, keys

    def _judge(self, hello: Hello, stream: Stream) -> Verdict:
        """Decide about an authentic writer; a new link of its own ends its old one."""
        if hello.target_generation != self._generation:
            return Verdict.OTHER_GENERATION
        with self._lock:
            peer = self._peers.get(hello.owner)
            if peer is not None and peer.generation > hello.generation:
                return Verdict.STALE_WRITER
            if peer is None or peer.link != hello.link:
                for old in peer.streams if peer else ():
                    old.cut()
                peer = self._peers[hello.owner] = _Peer(hello.generation, hello.link)
            if len(peer.streams) >= MAX_LINK_SOCKETS:
                return Verdict.TOO_MANY
            peer.streams.add(stream)
        return Verdict.TAKEN

    def _receive(self, stream: Stream, writer: Writer, keys: Keys) -> None:
        incoming, outgoing = FrameCodec(keys.to_owner), FrameCodec(keys.to_writer)
        head = memoryview(bytearray(HEAD_BYTES))
        table = memoryview(bytearray(16 * MAX_FRAGMENTS))
        refusals: dict[int, Refusal] = {}
        while True:
            stream.read(head, may_wait=True)
            frame = incoming.unpack(head)
            told = table[: frame.table_bytes]
            if frame.table_bytes:
                stream.read(told)
            ranges = incoming.check(frame, head, told)
            if frame.kind is Kind.FENCE:
                refusal = refusals.pop(frame.imm, Refusal.NONE)
                reply = Frame(
                    kind=Kind.FENCE_READ, imm=frame.imm, write=frame.write, region=refusal
                )
                stream.gather([outgoing.pack(reply)])
                continue
            if frame.kind is not Kind.WRITE:
                raise ProtocolError(f"{frame.kind.name} from a writer")
            visit = self._grants.enter(frame, ranges, writer=writer, cut=stream.cut)
            if isinstance(visit, Visit):
                self._take(stream, visit)
                continue
            self.counts.add(refused_frames=1, refused_bytes=frame.payload_bytes)
            refusals[frame.imm] = visit
            if len(refusals) > MAX_REFUSALS:
                del refusals[next(iter(refusals))]
            _drain(stream, frame.payload_bytes)

    def _take(self, stream: Stream, visit: Visit) -> None:
        """Let the kernel fill the region; the last frame of a write delivers its immediate."""
        is_whole = False
        try:
            if visit.views:
                stream.scatter(visit.views)
            is_whole = True
        finally:
            is_last = self._grants.leave(visit, is_whole=is_whole)
        if is_last:
            frame, writer = visit.frame, visit.writer
            self._deliver(
                Immediate(
                    imm=frame.imm,
                    source_rank=writer.rank,
                    generation=writer.generation,
                    write_number=frame.write,
                    num_bytes=frame.total_bytes,
                )
            )

    def _forget(self, stream: Stream, hello: Hello | None) -> None:
        with self._lock:
            peer = self._peers.get(hello.owner) if hello else None
            if peer is not None:
                peer.streams.discard(stream)
            self._streams.discard(stream)
            self._threads.discard(threading.current_thread())
            stream.close()


def _drain(stream: Stream, num_bytes: int) -> None:
    """Read bytes that may go nowhere."""
    scrap = memoryview(bytearray(min(_SCRAP_BYTES, num_bytes)))
    while num_bytes:
        part = scrap[: min(len(scrap), num_bytes)]
        stream.read(part)
        num_bytes -= len(part)
