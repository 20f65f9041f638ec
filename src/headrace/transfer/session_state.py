"""What a receive session is, and what can happen to it: plain values, no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct


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
        is_deadline: Nobody said anything; time was over.
        is_final: Another try would end alike.
    """

    session_id: str
    reason: str
    rank: int
    is_deadline: bool = False
    is_final: bool = False


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


@dataclass(slots=True)
class Writer:
    """One source rank of a session, as the receiver knows it; ``where`` as it last said itself."""

    generation: int
    expected_bytes: int
    received_bytes: int = 0
    progress: int | None = None
    is_quiet: bool = False
    where: str = ""

    @property
    def missing_bytes(self) -> int:
        """Bytes that this rank still owes; negative when it sent too much."""
        return self.expected_bytes - self.received_bytes


@dataclass(slots=True)
class ReceiveSession:
    """One live session; read only for everyone but ``ReceiveSessions``.

    ``replica`` names the prefill replica; ``writers`` are by source rank.
    """

    session_id: str
    imm: int
    replica: str
    writers: dict[int, Writer]
    opened_s: float
    timeout_s: float
    deadline_s: float
    state: SessionState = SessionState.RECEIVING
    is_computed: bool = False

    @property
    def expected_bytes(self) -> int:
        """Destination bytes of the whole session."""
        return sum(writer.expected_bytes for writer in self.writers.values())

    @property
    def received_bytes(self) -> int:
        """Destination bytes delivered so far."""
        return sum(writer.received_bytes for writer in self.writers.values())

    def is_computing(self) -> bool:
        """Whether the prefiller may still be queueing or computing, not just sending.

        Its ranks run the same steps, so one that has sent everything has computed everything.
        """
        sent_all = any(w.expected_bytes and not w.missing_bytes for w in self.writers.values())
        return not self.is_computed and not sent_all

    def shortest(self) -> tuple[int, Writer]:
        """Return the rank that owes most, the lowest of several."""
        return max(self.writers.items(), key=lambda item: (item[1].missing_bytes, -item[0]))

    def unheard(self) -> tuple[int, ...]:
        """Ranks that may still write."""
        return tuple(rank for rank, writer in self.writers.items() if not writer.is_quiet)
