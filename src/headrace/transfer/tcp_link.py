"""The sending side of the tcp transport: a link is all data sockets from one rank to another.

One thread connects, then reads what the owner answers; one thread per socket sends. Frames are
dealt to the sockets in turn. Whatever breaks, breaks the link: its sockets are shut, its threads
leave the kernel, and only then everything that was under way ends with the reason.
"""

from __future__ import annotations

import math
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle

from msgspec import Struct

from headrace.core.errors import ProtocolError, TransferError
from headrace.core.transport import CancelToken, Fragments, Immediate
from headrace.transfer.completion import Outcome, finished
from headrace.transfer.tally import Tally
from headrace.transfer.tcp_frames import (
    HEAD_BYTES,
    Frame,
    FrameCodec,
    Kind,
    Refusal,
    cut_pieces,
    join_ranges,
)
from headrace.transfer.tcp_handshake import (
    CHALLENGE_BYTES,
    NONCE_BYTES,
    PROTOCOL_VERSION,
    VERDICT_BYTES,
    Hello,
    Keys,
    WriterHandshake,
)
from headrace.transfer.tcp_stream import Stream

# How often overdue fences are looked for [s].
_TICK_S = 0.5
_REFUSED = {
    Refusal.NOT_GRANTED: "its session is over there, or its region is gone",
    Refusal.STRANGER: "the session was granted to another writer or generation",
    Refusal.OUTSIDE: "they lie outside of what the session was granted",
    Refusal.OVERFULL: "the write has more bytes or parts than it said",
}


class LinkConfig(Struct, frozen=True, kw_only=True):
    """What all links of a rank have in common.

    Attributes:
        owner: This rank's name.
        rank: Its index.
        generation: Its generation.
        key: Secret of the deployment.
        num_sockets: Data sockets of a link.
        connect_s: How long connecting and the handshake of a socket may take [s].
        patience_s: How long bytes or a fence may stand still [s].
    """

    owner: str
    rank: int
    generation: int
    key: bytes
    num_sockets: int
    connect_s: float
    patience_s: float


@dataclass(slots=True, eq=False)
class _Write:
    """One write; ``left`` pieces are not sent."""

    source: memoryview
    region: int
    immediate: Immediate
    token: CancelToken
    left: int
    error: str = ""
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(slots=True, eq=False)
class _Fence:
    """One fence; ``left`` are the sockets that have not said that they read it."""

    imm: int
    left: set[int]
    due_s: float = math.inf
    error: str = ""
    outcome: Outcome = field(default_factory=Outcome)


_Item = tuple[_Write, Fragments] | tuple[_Fence, int] | None


@dataclass(slots=True)
class _Socket:
    """One data socket, its keys, and what waits to be sent on it."""

    queue: queue.SimpleQueue[_Item] = field(default_factory=queue.SimpleQueue)
    stream: Stream | None = None
    keys: Keys | None = None
    thread: threading.Thread | None = None


class Link:
    """All data sockets from this rank to one owner of regions.

    Args:
        config: What all links of this rank have in common.
        host: Where the owner listens.
        port: Its port.
        target_generation: The owner's generation.
        counts: Where writes and bytes are counted.
        on_news: Called, from any thread, when a write or a fence is over.

    Guarantees:
        * Every write and fence ends: well, or with an error once no thread touches its bytes.
        * A link that broke stays broken; ``is_broken`` says so before its outcomes do.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        host: str,
        port: int,
        target_generation: int,
        counts: Tally,
        on_news: Callable[[], None],
    ) -> None:
        self._counts = counts
        self._config = config
        self._address = (host, port)
        self._name = f"{host}:{port}"
        self._target_generation = target_generation
        self._on_news = on_news
        self._sockets = [_Socket() for _ in range(config.num_sockets)]
        self._turns: Iterator[_Socket] = cycle(self._sockets)
        self._lock = threading.Lock()
        self._writes: set[_Write] = set()
        self._fences: dict[int, _Fence] = {}
        self._numbers = count()
        self._reason = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="headrace-tcp-link", daemon=True)

    def start(self) -> None:
        """Begin to connect; writes may be given already."""
        self._thread.start()

    def is_broken(self) -> bool:
        """Whether nothing more can be sent."""
        return bool(self._reason)

    def write(
        self,
        source: memoryview,
        fragments: Fragments,
        *,
        region: int,
        immediate: Immediate,
        token: CancelToken,
    ) -> Outcome:
        """Queue one write on the sockets in turn."""
        pieces = cut_pieces(fragments)
        write = _Write(source, region, immediate, token, left=len(pieces))
        with self._lock:
            if self._is_over or self._reason:
                return finished(self._reason)
            self._writes.add(write)
            for piece in pieces:
                next(self._turns).queue.put((write, piece))
        return write.outcome

    def fence(self, imm: int) -> Outcome:
        """Queue a fence behind everything on every socket."""
        fence = _Fence(imm, left=set(range(len(self._sockets))))
        with self._lock:
            if self._is_over or self._reason:
                return finished(self._reason)
            number = next(self._numbers)
            self._fences[number] = fence
            for one in self._sockets:
                one.queue.put((fence, number))
        return fence.outcome

    def shut(self, reason: str) -> None:
        """Break the link; what is under way ends with ``reason``. Any thread; does not wait."""
        with self._lock:
            self._reason = self._reason or reason
            for one in self._sockets:
                if one.stream is not None:
                    one.stream.cut()

    def is_alive(self) -> bool:
        """Whether any thread of the link still runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the threads of a link that was shut."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._connect()
            self._read_replies()
        except (OSError, ValueError, ProtocolError, TransferError) as error:
            # ValueError: a host name that no resolver takes.
            words = error.strerror if isinstance(error, OSError) else str(error)
            self.shut(f"connection to {self._name}: {words or error}")
        self._finish()

    def _connect(self) -> None:
        link = secrets.token_bytes(16)
        for one in self._sockets:
            one.keys = self._open(link, one)
        for one in self._sockets:
            one.thread = threading.Thread(
                target=self._send_all, args=(one,), name="headrace-tcp-send", daemon=True
            )
            one.thread.start()

    def _open(self, link: bytes, one: _Socket) -> Keys:
        """Connect one socket; it can be cut from the first moment on."""
        config = self._config
        deadline_s = time.monotonic() + config.connect_s
        family, kind, _, _, where = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        sock.settimeout(config.connect_s)
        with self._lock:
            stream = one.stream = Stream(sock, patience_s=config.patience_s)
            if self._reason:
                raise TransferError(self._reason)
        sock.connect(where)
        stream.prepare()
        hello = Hello(
            version=PROTOCOL_VERSION,
            owner=config.owner,
            rank=config.rank,
            generation=config.generation,
            target_generation=self._target_generation,
            link=link,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        handshake = WriterHandshake(config.key, hello)
        stream.gather([handshake.hello()])
        stream.gather([handshake.prove(stream.read_by(deadline_s, CHALLENGE_BYTES))])
        return handshake.finish(stream.read_by(deadline_s, VERDICT_BYTES))

    # -- sending ---------------------------------------------------------------------------

    def _send_all(self, one: _Socket) -> None:
        """Send what is queued on one socket until the link is over."""
        assert one.stream is not None
        assert one.keys is not None
        codec = FrameCodec(one.keys.to_owner)
        try:
            while (item := one.queue.get()) is not None and not self._reason:
                job, rest = item
                if isinstance(job, _Fence):
                    assert isinstance(rest, int)
                    frame = Frame(kind=Kind.FENCE, imm=job.imm, write=rest)
                    one.stream.gather([codec.pack(frame)])
                    job.due_s = time.monotonic() + self._config.patience_s
                else:
                    assert isinstance(rest, Fragments)
                    self._send_piece(one.stream, codec, job, piece=rest)
        except (OSError, TransferError) as error:
            self.shut(f"connection to {self._name}: {error}")

    def _send_piece(
        self, stream: Stream, codec: FrameCodec, write: _Write, *, piece: Fragments
    ) -> None:
        if not write.error:
            if write.token.is_cancelled():
                write.error = "cancelled before all of it was sent"
            else:
                stream.gather(_vectors(write, piece, codec))
        with self._lock:
            write.left -= 1
            if write.left:
                return
            self._writes.discard(write)
        if write.error:
            self._counts.add(failed=1)
        else:
            self._counts.add(writes=1, bytes=write.immediate.num_bytes)
        write.outcome.finish(write.error)
        self._on_news()

    # -- answers ---------------------------------------------------------------------------

    def _read_replies(self) -> None:
        """Read which fences were read, until the link breaks."""
        poller = select.poll()
        codecs: dict[int, tuple[int, Stream, FrameCodec]] = {}
        for index, one in enumerate(self._sockets):
            assert one.stream is not None
            assert one.keys is not None
            poller.register(one.stream.fileno(), select.POLLIN)
            codecs[one.stream.fileno()] = index, one.stream, FrameCodec(one.keys.to_writer)
        head = memoryview(bytearray(HEAD_BYTES))
        while not self._reason:
            for fileno, _ in poller.poll(_TICK_S * 1000):
                index, stream, codec = codecs[fileno]
                stream.read(head)
                frame = codec.unpack(head)
                codec.check(frame, head, b"")
                self._on_reply(frame, index)
            self._check_fences()

    def _on_reply(self, frame: Frame, index: int) -> None:
        if frame.kind is not Kind.FENCE_READ or frame.region not in Refusal.__members__.values():
            raise ProtocolError("an answer that is not to a fence")
        refusal = Refusal(frame.region)
        with self._lock:
            fence = self._fences.get(frame.write)
            if fence is None or index not in fence.left:
                raise ProtocolError(f"an answer to fence {frame.write}, which is not under way")
            fence.left.discard(index)
            if refusal is not Refusal.NONE:
                fence.error = f"{self._name} refused bytes: {_REFUSED[refusal]}"
            if fence.left:
                return
            del self._fences[frame.write]
        fence.outcome.finish(fence.error)
        self._on_news()

    def _check_fences(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            is_overdue = any(fence.due_s < now_s for fence in self._fences.values())
        if is_overdue:
            raise TransferError(f"a fence was not read within {self._config.patience_s} s")

    # -- the end ---------------------------------------------------------------------------

    def _finish(self) -> None:
        """End everything, once no thread reads source bytes any more."""
        for one in self._sockets:
            one.queue.put(None)
        for one in self._sockets:
            if one.thread is not None:
                one.thread.join()
            if one.stream is not None:
                one.stream.close()
        with self._lock:
            self._is_over = True
            self._counts.add(failed=len(self._writes))
            outcomes = [write.outcome for write in self._writes]
            outcomes += [fence.outcome for fence in self._fences.values()]
            self._writes.clear()
            self._fences.clear()
        for outcome in outcomes:
            outcome.finish(self._reason)
        self._on_news()


def _vectors(write: _Write, piece: Fragments, codec: FrameCodec) -> list[bytes | memoryview]:
    """Return what one system call sends: head and table, then the source bytes as they lie.

    Ranges that touch are joined at either end by themselves: fewer vectors, here and there.
    """
    immediate, source = write.immediate, write.source
    sizes = piece.num_bytes.tolist()
    frame = Frame(
        kind=Kind.WRITE,
        region=write.region,
        imm=immediate.imm,
        write=immediate.write_number,
        total_bytes=immediate.num_bytes,
        payload_bytes=sum(sizes),
    )
    return [
        codec.pack(frame, join_ranges(piece.target_offsets.tolist(), sizes)),
        *(
            source[offset : offset + size]
            for offset, size in join_ranges(piece.source_offsets.tolist(), sizes)
        ),
    ]
