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

import math
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from headrace.core.errors import SessionError
from headrace.core.flight import SessionWait
from headrace.core.messages import SessionFailed, SessionQuiet
from headrace.core.transport import Immediate
from headrace.transfer.session_state import (
    Complete,
    Failed,
    Quarantined,
    Quiet,
    ReceiveSession,
    SessionEvent,
    SessionState,
    Writer,
)

# Progress of other work extends a session's wait, since a queue is no fault; but a request that was
# lost looks just like a long queue, so that the waiting ends after this many timeouts.
MAX_TIMEOUTS = 20


class Expectations(Protocol):
    """The part of ``TransferEngine`` (or ``Inbox``) that sessions use."""

    def expect(self, imm: int, num_bytes: int, *, writers: Mapping[int, int] | None = None) -> None:
        """See ``Inbox.expect``."""
        ...

    def retire(self, imm: int) -> None:
        """See ``Inbox.retire``."""
        ...


class ReceiveSessions:
    """All receive sessions of one decode rank.

    Args:
        expectations: Where immediate ids are expected and retired: the rank's engine.

    Guarantees:
        * Every session yields exactly one of ``Complete`` and ``Quiet``; ``Failed`` comes before
          ``Quiet`` unless the session was cancelled.
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
        self._by_imm: dict[int, ReceiveSession] = {}
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
            SessionError: The id is live already, the ranks of the two mappings differ, or nothing
                is owed at all (then no session is needed).
            TransferError: The immediate id was used before.
        """
        if session_id in self._sessions:
            raise SessionError(f"session {session_id} is open already")
        if generations.keys() != expected_bytes.keys():
            raise SessionError(
                f"session {session_id}: generations of ranks {sorted(generations)} but bytes of "
                f"ranks {sorted(expected_bytes)}"
            )
        if not any(expected_bytes.values()):
            raise SessionError(f"session {session_id}: no rank owes a byte")
        self._expectations.expect(imm, sum(expected_bytes.values()), writers=dict(generations))
        session = ReceiveSession(
            session_id=session_id,
            imm=imm,
            replica=replica,
            writers={
                rank: Writer(generation, expected_bytes[rank])
                for rank, generation in sorted(generations.items())
            },
            opened_s=now_s,
            timeout_s=timeout_s,
            deadline_s=now_s + timeout_s,
        )
        self._sessions[session_id] = self._by_imm[imm] = session
        for rank, generation in generations.items():
            if (replica, rank, generation) in self._dead:
                self._bury(session, rank, now_s)

    def on_immediate(self, immediate: Immediate, *, now_s: float) -> None:
        """Take an immediate that the engine accepted."""
        session = self._by_imm.get(immediate.imm)
        if session is None:
            self.ignored["immediate"] += 1
            return
        rank = immediate.source_rank
        writer = session.writers.get(rank)
        if writer is None or writer.generation != immediate.generation:
            self.ignored["stale"] += 1
            return
        writer.received_bytes += immediate.num_bytes
        if session.state is not SessionState.RECEIVING:
            return
        session.deadline_s = now_s + session.timeout_s
        if writer.missing_bytes < 0:
            self._fail(
                session, rank, f"sent more than its {writer.expected_bytes} bytes", now_s=now_s
            )
        elif not any(one.missing_bytes for one in session.writers.values()):
            self._end(session, Complete(session.session_id, session.received_bytes))

    def on_done(self, session_id: str, *, now_s: float) -> None:
        """Take ``SessionDone``: all chunks are computed, so only bytes count as progress now."""
        session = self._sessions.get(session_id)
        if session is not None and session.state is SessionState.RECEIVING:
            session.is_computed = True
            session.deadline_s = now_s + session.timeout_s

    def on_failed(self, message: SessionFailed, *, now_s: float) -> None:
        """Take a rank's word that it could not do its part."""
        session = self._heard(message)
        if session is not None and session.state is SessionState.RECEIVING:
            what = f"failed: {message.reason}"
            self._fail(session, message.rank, what, now_s=now_s, is_final=message.is_final)

    def on_quiet(self, message: SessionQuiet, *, now_s: float) -> None:
        """Take a rank's proof of quiet."""
        session = self._heard(message)
        if session is not None:
            session.writers[message.rank].is_quiet = True
            self._settle(session, message.rank, "stopped", now_s=now_s)

    def on_heartbeat(
        self,
        replica: str,
        *,
        rank: int,
        generation: int,
        progress: int,
        now_s: float,
        where: str = "",
    ) -> None:
        """Take a sign of life; growing ``progress`` counts while the rank may be computing.

        ``where`` the rank stands, in words, is told when its session fails.
        """
        for session in self._sessions.values():
            writer = session.writers.get(rank)
            if session.replica != replica or writer is None:
                continue
            if writer.generation != generation:
                self.ignored["stale"] += 1
                continue
            grew = writer.progress is not None and progress > writer.progress
            writer.progress = progress
            writer.where = where
            if grew and session.state is SessionState.RECEIVING and session.is_computing():
                latest_s = session.opened_s + MAX_TIMEOUTS * session.timeout_s
                wait_s = min(now_s + session.timeout_s, latest_s)
                session.deadline_s = max(session.deadline_s, wait_s)

    def on_generation_dead(self, replica: str, *, rank: int, generation: int, now_s: float) -> None:
        """Take certain knowledge that a rank's process is gone (reaped, or its socket closed)."""
        self._dead.add((replica, rank, generation))
        for session in list(self._sessions.values()):
            writer = session.writers.get(rank)
            if session.replica == replica and writer and writer.generation == generation:
                self._bury(session, rank, now_s)

    def cancel(self, session_id: str, *, now_s: float) -> None:
        """Give a session up; ``Quiet`` follows. Unknown ids are ignored: it may just be over."""
        session = self._sessions.get(session_id)
        if session is not None and session.state is SessionState.RECEIVING:
            self._stop(session, now_s)

    def tick(self, now_s: float) -> None:
        """Let deadlines pass."""
        for session in list(self._sessions.values()):
            if now_s < session.deadline_s:
                continue
            if session.state is SessionState.RECEIVING:
                rank, _ = session.shortest()
                what = f"made no progress for {session.timeout_s} s"
                self._fail(session, rank, what, now_s=now_s, is_deadline=True)
            elif session.state is SessionState.CANCELLING:
                session.state = SessionState.QUARANTINE
                session.deadline_s = math.inf
                self._events.append(Quarantined(session.session_id, session.unheard()))

    def next_deadline_s(self) -> float:
        """Return the earliest time at which ``tick`` has something to do; inf if never."""
        return min((one.deadline_s for one in self._sessions.values()), default=math.inf)

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name. Any thread may call."""
        return {
            f"headrace_session_messages_ignored_{reason}_total": float(self.ignored[reason])
            for reason in ("immediate", "stale", "ended")
        }

    def waits(self, now_s: float) -> list[SessionWait]:
        """Return the sessions that wait for KV, with what each rank still owes."""
        return [
            SessionWait(
                session_id=session.session_id,
                replica=session.replica,
                waited_s=round(now_s - session.opened_s, 3),
                missing_bytes={rank: one.missing_bytes for rank, one in session.writers.items()},
            )
            for session in self._sessions.values()
        ]

    def take_events(self) -> list[SessionEvent]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _heard(self, message: SessionQuiet | SessionFailed) -> ReceiveSession | None:
        """Return the live session that a message is about, if its sender is one of its writers."""
        session = self._sessions.get(message.session_id)
        if session is None:
            self.ignored["ended"] += 1
            return None
        writer = session.writers.get(message.rank)
        if writer is None or writer.generation != message.generation:
            self.ignored["stale"] += 1
            return None
        return session

    def _bury(self, session: ReceiveSession, rank: int, now_s: float) -> None:
        session.writers[rank].is_quiet = True
        self._settle(session, rank, "died", now_s=now_s)

    def _settle(self, session: ReceiveSession, rank: int, verb: str, *, now_s: float) -> None:
        """Draw the conclusions from a writer that will not write again."""
        if session.state is SessionState.RECEIVING:
            if session.writers[rank].missing_bytes:
                self._fail(session, rank, verb, now_s=now_s)
        elif not session.unheard():
            self._end(session, Quiet(session.session_id))

    def _fail(
        self,
        session: ReceiveSession,
        rank: int,
        what: str,
        *,
        now_s: float,
        is_deadline: bool = False,
        is_final: bool = False,
    ) -> None:
        writer = session.writers[rank]
        heard = f", last heard in {writer.where}" if writer.where else ""
        reason = (
            f"prefill rank {session.replica}.{rank} (generation {writer.generation}) {what}; "
            f"it delivered {writer.received_bytes} of {writer.expected_bytes} bytes{heard}"
        )
        self._events.append(Failed(session.session_id, reason, rank, is_deadline, is_final))
        self._stop(session, now_s)

    def _stop(self, session: ReceiveSession, now_s: float) -> None:
        session.state = SessionState.CANCELLING
        session.deadline_s = now_s + session.timeout_s
        if not session.unheard():
            self._end(session, Quiet(session.session_id))

    def _end(self, session: ReceiveSession, event: SessionEvent) -> None:
        self._expectations.retire(session.imm)
        del self._sessions[session.session_id]
        del self._by_imm[session.imm]
        self._events.append(event)
