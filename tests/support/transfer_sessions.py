"""Receive sessions with an inbox of their own, for tests of the state machine alone."""

from __future__ import annotations

from itertools import count

from headrace.core.messages import SessionFailed, SessionQuiet
from headrace.core.transport import Immediate
from headrace.transfer.inbox import Inbox
from headrace.transfer.session import ReceiveSessions

TIMEOUT_S = 10.0
REPLICA = "prefill-0"


class Receiver:
    """One decode rank's sessions; rank r of the replica has generation 100 + r."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.sessions = ReceiveSessions(self.inbox)
        self._imms = count()
        self._writes = count()

    def open(self, session_id: str, owed: dict[int, int], *, now_s: float = 0.0) -> int:
        """Open a session in which rank r owes ``owed[r]`` bytes; return its immediate id."""
        imm = next(self._imms)
        self.sessions.open(
            session_id,
            imm=imm,
            replica=REPLICA,
            generations={rank: 100 + rank for rank in owed},
            expected_bytes=owed,
            now_s=now_s,
            timeout_s=TIMEOUT_S,
        )
        return imm

    def arrive(self, imm: int, rank: int, num_bytes: int, *, now_s: float = 0.0) -> None:
        """Let one write of a rank arrive."""
        self.inbox.deliver(Immediate(imm, rank, 100 + rank, next(self._writes), num_bytes))
        for immediate in self.inbox.take()[1]:
            self.sessions.on_immediate(immediate, now_s=now_s)

    def quiet(self, session_id: str, rank: int, *, generation: int | None = None) -> None:
        """Let one rank say quiet."""
        message = SessionQuiet(
            session_id=session_id, rank=rank, generation=generation or 100 + rank
        )
        self.sessions.on_quiet(message, now_s=0.0)

    def failed(self, session_id: str, rank: int, reason: str = "post failed") -> None:
        """Let one rank say that it failed."""
        message = SessionFailed(
            session_id=session_id, rank=rank, generation=100 + rank, reason=reason
        )
        self.sessions.on_failed(message, now_s=0.0)

    def beat(
        self, rank: int, progress: int, *, now_s: float, generation: int = 0, where: str = ""
    ) -> None:
        """Let one rank's heartbeat come."""
        self.sessions.on_heartbeat(
            REPLICA,
            rank=rank,
            generation=generation or 100 + rank,
            progress=progress,
            now_s=now_s,
            where=where,
        )

    def die(self, rank: int, *, now_s: float = 0.0) -> None:
        """Let one rank be known dead."""
        self.sessions.on_generation_dead(REPLICA, rank=rank, generation=100 + rank, now_s=now_s)
