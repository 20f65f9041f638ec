"""Receive sessions of a decode rank: from the request for KV to blocks that may be used again.

Sans-IO: time is an argument, messages are method calls, and what happened comes out as events.
The caller sends ``CancelSession`` to the prefill replica when it calls ``cancel`` and when it
sees ``Failed``.

    receiving --all bytes--> (Complete) closed
    receiving --cancel, failure, no progress--> cancelling --all writers quiet or dead--> (Quiet)
    cancelling --writers unheard for a timeout--> (Quarantined) quarantine --...--> (Quiet)

Blocks may be scheduled after ``Complete`` and reused after ``Quiet``, never before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from headrace.core.errors import SessionError
from headrace.core.messages import SessionFailed, SessionQuiet
from headrace.core.transport import Immediate


class Complete(Struct, frozen=True):
    """All bytes are there: the request may be scheduled. The session is over."""

    session_id: str
    num_bytes: int


class Failed(Struct, frozen=True):
    """The KV will not come; the blocks are still held until ``Quiet``.

    Attributes:
        session_id: Which session.
        reason: One line that names the rank at fault.
        rank: The source rank at fault.
    """

    session_id: str
    reason: str
    rank: int


class Quarantined(Struct, frozen=True):
    """Writers could not be heard: the blocks stay out of use until their generations are dead."""

    session_id: str
    ranks: tuple[int, ...]


class Quiet(Struct, frozen=True):
    """No writer can touch the blocks any more: they may be reused. The session is over."""

    session_id: str


SessionEvent = Complete | Failed | Quarantined | Quiet


class SessionState(StrEnum):
    """Where a live session stands."""

    RECEIVING = "receiving"
    CANCELLING = "cancelling"
    QUARANTINE = "quarantine"


class Expectations(Protocol):
    """The part of ``TransferEngine`` (or ``Inbox``) that sessions use."""

    def expect(
        self, imm: int, num_bytes: int, *, writers: Mapping[int, int] | None = None
    ) -> None:
        """See ``Inbox.expect``."""
        ...

    def retire(self, imm: int) -> None:
        """See ``Inbox.retire``."""
        ...


@dataclass(slots=True)
class Writer:
    """One source rank of a session, as the receiver knows it."""

    generation: int
    expected_bytes: int
    received_bytes: int = 0
    is_quiet: bool = False

    @property
    def is_short(self) -> bool:
        """Whether bytes of this rank are missing."""
        return self.received_bytes < self.expected_bytes


@dataclass(slots=True)
class ReceiveSession:
    """One live session; read only for everyone but ``ReceiveSessions``.

    ``replica`` names the prefill replica, ``writers`` are by source rank.
    """

    session_id: str
    imm: int
    replica: str
    writers: dict[int, Writer]
    timeout_s: float
    deadline_s: float
    state: SessionState = SessionState.RECEIVING
    is_computed: bool = False
    progress: dict[int, int] = field(default_factory=dict)

    @property
    def expected_bytes(self) -> int:
        """Destination bytes of the whole session."""
        return sum(writer.expected_bytes for writer in self.writers.values())

    @property
    def received_bytes(self) -> int:
        """Destination bytes delivered so far."""
        return sum(writer.received_bytes for writer in self.writers.values())


class ReceiveSessions:
    """All receive sessions of one decode rank.

    Args:
        expectations: Where immediate ids are expected and retired: the rank's engine.

    Guarantees:
        * Every session yields exactly one of ``Complete`` and (``Quiet``, with ``Failed`` before
          it unless it was cancelled).
        * ``Quiet`` comes only when every writer said quiet or its generation is known dead.
        * With ``tick`` called, ``Complete`` or ``Failed`` comes within ``timeout_s`` of the last
          progress, and ``Quiet`` or ``Quarantined`` within ``timeout_s`` of that.
        * Messages of other generations, unknown ranks or ended sessions change nothing and are
          counted in ``ignored``.
    """

    def __init__(self, expectations: Expectations) -> None:
        self.ignored: Counter[str] = Counter()
        self._expectations = expectations
        self._sessions: dict[str, ReceiveSession] = {}
        self._by_imm: dict[int, str] = {}
        self._dead: set[tuple[str, int, int]] = set()
        self._events: list[SessionEvent] = []

    def __len__(self) -> int:
        """Sessions that still hold blocks."""
        return len(self._sessions)

    def get(self, session_id: str) -> ReceiveSession | None:
        """Return a live session, for the ledger and for looking at."""
        return self._sessions.get(session_id)

    def open(
        self,
        session_id: str,
        *,
        imm: int,
        replica: str,
        generations: Mapping[int, int],
        expected_bytes: Mapping[int, int],
        now_s: float,
        timeout_s: float,
    ) -> None:
        """Begin a session, before its ``PrefillRequest`` is sent.

        Args:
            session_id: Unique in this rank's generation.
            imm: Minted by ``TransferEngine.next_imm``.
            replica: Name of the prefill replica.
            generations: Generation of each of its ranks.
            expected_bytes: What each rank owes, from ``expected_bytes_by_source`` with ``imm``
                as seed.
            now_s: Time now [s].
            timeout_s: Longest wait without progress [s].

        Raises:
            SessionError: The id is live already, or ranks of the two mappings differ.
            TransferError: The immediate id was used before.
        """

    def on_immediate(self, immediate: Immediate, *, now_s: float) -> None:
        """Take an immediate that the engine accepted."""

    def on_done(self, session_id: str, *, now_s: float) -> None:
        """Take ``SessionDone``: all chunks are computed, so only bytes count as progress now."""

    def on_failed(self, message: SessionFailed, *, now_s: float) -> None:
        """Take a rank's word that it could not do its part."""

    def on_quiet(self, message: SessionQuiet) -> None:
        """Take a rank's proof of quiet."""

    def on_heartbeat(
        self, replica: str, *, rank: int, generation: int, progress: int, now_s: float
    ) -> None:
        """Take a sign of life; only growing ``progress`` of a rank that owes bytes counts."""

    def on_generation_dead(self, replica: str, *, rank: int, generation: int, now_s: float) -> None:
        """Take certain knowledge that a rank's process is gone (reaped, or its socket closed)."""

    def cancel(self, session_id: str, *, now_s: float) -> None:
        """Give a session up; ``Quiet`` follows. Unknown ids are ignored (it may just be over)."""

    def tick(self, now_s: float) -> None:
        """Let deadlines pass."""

    def next_deadline_s(self) -> float | None:
        """Return the earliest time at which ``tick`` has something to do."""

    def take_events(self) -> list[SessionEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events
