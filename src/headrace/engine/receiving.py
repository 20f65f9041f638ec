"""A decode rank's transfers: asks prefillers for KV and hears when it is whole.

Wires three things together: the transfer engine (bytes and immediates), the receive sessions
(what they mean) and the control plane (who is asked and told). Blocks of a session that was
given up stay here until their writers are known to be quiet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.clock import Clock
from headrace.core.flight import Flight, SessionWait, told_position
from headrace.core.messages import (
    CancelSession,
    Heartbeat,
    Message,
    PrefillRequest,
    RegionDescriptor,
    SessionDone,
    SessionFailed,
    SessionQuiet,
    SessionStarted,
    Topology,
)
from headrace.core.transport import Grant
from headrace.engine.prefillers import Prefillers, source_heads
from headrace.engine.sequence import Sequence
from headrace.kvcache.pool import BlockPool
from headrace.transfer.engine import TransferEngine
from headrace.transfer.owners import expected_bytes_by_source
from headrace.transfer.session import ReceiveSessions
from headrace.transfer.session_state import Complete, Failed, Quarantined, Quiet

log = logging.getLogger(__name__)

# A replica that dies between its last write and its last word never sends the latter.
MAX_AWAITING_DONE = 1024


@dataclass(slots=True)
class _Inbound:
    """A session's sequence until it is complete or given up, its given-up blocks from then on.

    ``prefiller_s`` is what the prefiller is known to have spent in its line and on steps.
    """

    sequence: Sequence | None
    lead: str
    quarantined: list[int]
    prefiller_s: float = 0.0
    is_quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A session that will not bring its KV.

    Attributes:
        sequence: Whose KV it was; its blocks are the session's until ``give_up``.
        replica: Prefill replica that was asked.
        reason: One line that names the rank at fault.
        is_final: Another try would end alike.
    """

    sequence: Sequence
    replica: str
    reason: str
    is_final: bool


class Receiving:
    """All sessions of one decode rank. One thread.

    Args:
        engine: The rank's transfer engine.
        region: Descriptor of the rank's KV region.
        name: Rank's name and generation: prefix of session ids, never derived from API ids.
        address: Rank's control address.
        send: Sends a message to a control address.
        clock: Time.
        timeout_s: Longest wait without progress [s].
        flight: Told of every session.
        on_deadline: Told in one line which session came to no end in its time.
    """

    def __init__(
        self,
        *,
        engine: TransferEngine,
        region: RegionDescriptor,
        name: str,
        address: str,
        send: Callable[[str, Message], object],
        clock: Clock,
        timeout_s: float,
        flight: Flight | None = None,
        on_deadline: Callable[[str], None] = log.warning,
    ) -> None:
        self.bytes_received = 0
        self._flight = flight or Flight()
        self._on_deadline = on_deadline
        self._engine = engine
        self._sessions = ReceiveSessions(engine)
        self._region = region
        self._name = name
        self._address = address
        self._send = send
        self._clock = clock
        self._timeout_s = timeout_s
        self._prefillers = Prefillers()
        self._inbound: dict[str, _Inbound] = {}
        self._awaiting_done: dict[str, Sequence] = {}
        self._complete: list[Sequence] = []
        self._failed: list[Failure] = []
        self._quiet: list[list[int]] = []
        self._next_session = 0
        self._num_failed = 0

    def __len__(self) -> int:
        """Sessions that still hold blocks."""
        return len(self._sessions)

    # -- messages ------------------------------------------------------------------------

    def on_topology(self, topology: Topology) -> None:
        """Learn which prefill replicas live; generations not listed will never write again."""
        for replica, rank in self._prefillers.update(topology):
            self._sessions.on_generation_dead(
                replica,
                rank=rank.rank,
                generation=rank.generation,
                now_s=self._clock.now_s(),
            )

    def on_message(self, message: Message) -> None:
        """Take what a prefill replica says about sessions."""
        now_s = self._clock.now_s()
        match message:
            case SessionQuiet():
                self._sessions.on_quiet(message, now_s=now_s)
            case SessionFailed():
                self._sessions.on_failed(message, now_s=now_s)
            case SessionStarted():
                self._on_started(message)
            case SessionDone():
                self._on_done(message, now_s)
            case Heartbeat():
                self._sessions.on_heartbeat(
                    message.replica,
                    rank=message.info.rank,
                    generation=message.info.generation,
                    progress=message.progress,
                    now_s=now_s,
                    where=told_position(message.counters),
                )
            case _:
                raise AssertionError(f"{type(message).__name__} is not about sessions")

    def poll(self) -> None:
        """Take immediates, let deadlines pass, and sort what happened."""
        now_s = self._clock.now_s()
        for immediate in self._engine.poll().immediates:
            self._sessions.on_immediate(immediate, now_s=now_s)
        self._sessions.tick(now_s)
        for event in self._sessions.take_events():
            match event:
                case Complete():
                    self._on_complete(event, now_s)
                case Failed():
                    self._on_failed(event)
                case Quiet():
                    self._on_quiet(event)
                case Quarantined():
                    log.warning(
                        "session %s: ranks %s cannot be heard; its blocks stay in quarantine",
                        event.session_id,
                        event.ranks,
                    )

    def counters(self) -> dict[str, float]:
        """Return monotonic counters, by Prometheus name. Any thread may call."""
        return {
            "headrace_received_bytes_total": self.bytes_received,
            "headrace_sessions_opened_total": self._next_session,
            "headrace_sessions_failed_total": self._num_failed,
            **self._sessions.counters(),
        }

    def waits(self) -> list[SessionWait]:
        """Return the sessions that wait for KV, for the flight record."""
        return self._sessions.waits(self._clock.now_s())

    def next_deadline_s(self) -> float | None:
        """When ``poll`` must be called though nothing arrived."""
        return self._sessions.next_deadline_s()

    # -- the rank's side -----------------------------------------------------------------

    def can_reach(self, sequence: Sequence) -> bool:
        """Whether a prefill replica is there for the sequence."""
        return self._prefillers.choose(sequence) is not None

    def open(self, sequence: Sequence) -> None:
        """Ask a prefill replica for the KV that the sequence lacks; its blocks are pinned."""
        replica = self._prefillers.choose(sequence)
        if replica is None:
            raise AssertionError("open without a replica: ask can_reach first")
        session_id = f"{self._name}-{self._next_session}"
        self._next_session += 1
        imm = self._engine.next_imm()
        start, stop = sequence.blocks.num_tokens, len(sequence.token_ids) - 1
        owed = expected_bytes_by_source(
            source_heads(replica, self._region.layout),
            self._region.layout,
            start=start,
            stop=stop,
            seed=imm,
        )
        generations = {rank.rank: rank.generation for rank in replica.ranks}
        self._grant(imm, sequence, replica.name, writers=generations)
        self._sessions.open(
            session_id,
            imm=imm,
            replica=replica.name,
            generations=generations,
            expected_bytes=owed,
            now_s=self._clock.now_s(),
            timeout_s=min(self._timeout_s, sequence.submit.deadline_s),
        )
        self._flight.note("open_session", imm)
        lead = replica.ranks[0].address
        self._inbound[session_id] = _Inbound(sequence, lead, [])
        sequence.session_id = session_id
        sequence.ledger.num_sessions += 1
        sequence.ledger.bytes_expected += sum(owed.values())
        sequence.ledger.prefill_replica = replica.name
        self._send(
            lead,
            PrefillRequest(
                session_id=session_id,
                imm=imm,
                reply_to=self._address,
                token_ids=sequence.token_ids,
                start=start,
                block_ids=sequence.blocks.block_ids,
                target=self._region,
                ordinal=sequence.submit.ordinal,
            ),
        )

    def give_up(self, sequence: Sequence) -> None:
        """End a RECEIVING sequence: its blocks go into quarantine until the writers are quiet."""
        session_id, sequence.session_id = sequence.session_id, ""
        inbound = self._inbound[session_id]
        inbound.quarantined = sequence.blocks.quarantine()
        inbound.sequence = None
        if inbound.is_quiet:
            self._quiet.append(self._inbound.pop(session_id).quarantined)
            return
        self._sessions.cancel(session_id, now_s=self._clock.now_s())
        # A lead that is gone for good needs no word, and its address is forgotten already.
        if self._prefillers.has_address(inbound.lead):
            message = CancelSession(session_id=session_id, reply_to=self._address)
            self._send(inbound.lead, message)

    def take_complete(self) -> list[Sequence]:
        """Return sequences whose KV became whole since the last call."""
        taken, self._complete = self._complete, []
        return taken

    def take_failed(self) -> list[Failure]:
        """Return what failed since the last call and was not given up; give it up now."""
        taken, self._failed = self._failed, []
        return [failure for failure in taken if failure.sequence.session_id]

    def release_quiet(self, pool: BlockPool) -> None:
        """Return blocks to the pool whose writers are known to be quiet."""
        for block_ids in self._quiet:
            pool.release_quarantined(block_ids)
        self._quiet.clear()

    # -- events --------------------------------------------------------------------------

    def _on_complete(self, event: Complete, now_s: float) -> None:
        inbound = self._inbound.pop(event.session_id)
        sequence = inbound.sequence
        self.bytes_received += event.num_bytes
        self._flight.note("session_complete", event.num_bytes)
        if sequence is None:
            raise AssertionError(f"{event.session_id} completed after it was given up")
        sequence.session_id = ""
        # Bytes and messages travel apart: the last word on what the prompt cost may come later.
        self._awaiting_done[event.session_id] = sequence
        if len(self._awaiting_done) > MAX_AWAITING_DONE:
            del self._awaiting_done[next(iter(self._awaiting_done))]
        sequence.ledger.bytes_received += event.num_bytes
        exposed_s = now_s - sequence.admitted_s - inbound.prefiller_s
        sequence.ledger.transfer_s += max(0.0, exposed_s)
        self._complete.append(sequence)

    def _on_failed(self, event: Failed) -> None:
        self._num_failed += 1
        if event.is_deadline:
            self._on_deadline(f"session {event.session_id}: {event.reason}")
        inbound = self._inbound[event.session_id]
        if inbound.sequence is None:
            return
        self._failed.append(
            Failure(
                sequence=inbound.sequence,
                replica=inbound.sequence.ledger.prefill_replica,
                reason=event.reason,
                is_final=event.is_final,
            )
        )

    def _on_quiet(self, event: Quiet) -> None:
        inbound = self._inbound[event.session_id]
        if inbound.sequence is None:
            self._quiet.append(self._inbound.pop(event.session_id).quarantined)
        else:
            # Failed and quiet at once: the rank has yet to hear of the failure and give up.
            inbound.is_quiet = True

    def _on_started(self, message: SessionStarted) -> None:
        queue_s = _seconds(message.queue_s)
        sequence = self._account(message.session_id, queue_s)
        if sequence is None:
            return
        sequence.ledger.queue_s += queue_s
        if not sequence.is_resumed:
            # Only the first pass was of the prompt, and only its last session brought it.
            cached_tokens = min(max(0, message.cached_tokens), sequence.num_prompt_tokens)
            sequence.ledger.prefiller_cached_tokens = cached_tokens

    def _on_done(self, message: SessionDone, now_s: float) -> None:
        compute_s = _seconds(message.compute_s)
        sequence = self._account(message.session_id, compute_s)
        if sequence is not None:
            sequence.ledger.prefill_s += compute_s
        self._awaiting_done.pop(message.session_id, None)
        self._sessions.on_done(message.session_id, now_s=now_s)

    def _account(self, session_id: str, spent_s: float) -> Sequence | None:
        """Take time that the prefiller spent out of what the transfer is blamed for."""
        inbound = self._inbound.get(session_id)
        if inbound is not None:
            inbound.prefiller_s += spent_s
            return inbound.sequence
        sequence = self._awaiting_done.get(session_id)
        if sequence is not None:
            sequence.ledger.transfer_s = max(0.0, sequence.ledger.transfer_s - spent_s)
        return sequence

    def _grant(
        self, imm: int, sequence: Sequence, replica: str, *, writers: dict[int, int]
    ) -> None:
        """Let the replica's ranks write what the sequence lacks, before they are asked to."""
        self._engine.grant(
            imm,
            Grant(
                region=self._region,
                block_ids=sequence.blocks.block_ids,
                start=sequence.blocks.num_tokens,
                stop=len(sequence.token_ids) - 1,
                replica=replica,
                writers=writers,
            ),
        )


def _seconds(told_s: float) -> float:
    """Return a peer's time, or 0 for what is none: one NaN would spoil every sum it enters."""
    return told_s if 0.0 <= told_s < math.inf else 0.0
