"""Send sessions of a prefill rank: chunk by chunk and layer by layer, until drained.

Sans-IO but for the engine that it is given. Messages for other ranks come out of ``poll`` with the
address that they go to; every rank of the replica, the lead too, tells the lead ``SendDone``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from headrace.core.errors import IllegalPlanError, TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import (
    CancelSession,
    Message,
    PrefillRequest,
    RegionDescriptor,
    SendDone,
    SessionFailed,
    SessionQuiet,
)
from headrace.core.transport import CancelToken, Completion, Fragments, Region
from headrace.transfer.owners import expected_bytes_by_source
from headrace.transfer.plan import TransferPlan, plan_transfer

# Ended sessions that are remembered, so that a late order to open one is refused. The lead gives
# its orders in sequence, so only the newest few could ever be named again.
MAX_ENDED = 4096


class Outgoing(Struct, frozen=True):
    """A message and the control address that it goes to."""

    address: str
    message: Message


class WriteEngine(Protocol):
    """The part of ``TransferEngine`` that senders use."""

    def write(
        self,
        source: Region,
        target: RegionDescriptor,
        fragments: Fragments,
        *,
        imm: int,
        token: CancelToken | None = None,
    ) -> Completion:
        """See ``TransferEngine.write``."""
        ...

    def end_writes(self, target: RegionDescriptor, imm: int) -> Completion:
        """See ``TransferEngine.end_writes``."""
        ...

    def forget(self, target: RegionDescriptor) -> None:
        """See ``TransferEngine.forget``."""
        ...


@dataclass(slots=True)
class _Send:
    """One session that is not drained.

    ``pending`` writes stand with their layer; ``fence`` is set once there will be none.
    ``quiet_to`` is where to prove quiet, once it is stopped; empty when nobody is left to hear.
    """

    request: PrefillRequest
    block_ids: Sequence[int]
    owed_bytes: int
    submitted_bytes: int = 0
    token: CancelToken = field(default_factory=CancelToken)
    pending: list[tuple[int, Completion]] = field(default_factory=list)
    fence: Completion | None = None
    plan: TransferPlan | None = None
    quiet_to: str = ""

    @property
    def stop(self) -> int:
        """Position after the last token to send: the last prompt token is the decoder's."""
        return len(self.request.token_ids) - 1

    def is_written(self) -> bool:
        """Whether no write is pending and none will come."""
        is_over = self.token.is_cancelled() or self.submitted_bytes >= self.owed_bytes
        return is_over and not self.pending


class SendSessions:
    """All send sessions of one prefill rank.

    Args:
        engine: Writes fragments.
        region: This rank's KV region.
        sources: Layout of every rank of the replica, in rank order.
        rank: This rank's index.
        generation: This rank's generation.
        lead_address: Control address of the replica's lead, which is told ``SendDone``.

    Guarantees:
        * Only tokens of [start, n - 1) of a request are sent, and only by proven plans.
        * No write begins for a session that is unknown, cancelled or failed.
        * Each opened session yields ``SendDone`` exactly once, when its last write has completed
          or drained; if it was cancelled or failed, one ``SessionQuiet`` comes with it.
        * A ``CancelSession`` for a session that is over, or was never opened, is answered with
          one ``SessionQuiet`` at once, and the session can never be opened again.
    """

    def __init__(
        self,
        engine: WriteEngine,
        *,
        region: Region,
        sources: Sequence[CacheLayout],
        rank: int,
        generation: int,
        lead_address: str,
    ) -> None:
        self._engine = engine
        self._region = region
        self._sources = tuple(sources)
        self._rank = rank
        self._generation = generation
        self._lead_address = lead_address
        self._open: dict[str, _Send] = {}
        self._ended: dict[str, None] = {}
        self._outgoing: list[Outgoing] = []

    def __len__(self) -> int:
        """Sessions that are not drained."""
        return len(self._open)

    def open(self, request: PrefillRequest, *, block_ids: Sequence[int]) -> bool:
        """Begin a session.

        Args:
            request: The decoder's request.
            block_ids: The replica's own blocks, for the prompt from position 0; not copied and
                must not change until the session is drained.

        Returns:
            Whether to compute. False when the session was cancelled before it came, or when no
            plan exists between the two layouts; the decoder is then told by ``poll``.

        Raises:
            TransferError: The session is open already.
        """
        session_id = request.session_id
        if session_id in self._open:
            raise TransferError(f"session {session_id} is open already")
        if session_id in self._ended:
            return False
        send = _Send(request, block_ids, owed_bytes=0)
        self._open[session_id] = send
        try:
            send.owed_bytes = self._owed_bytes(send)
        except IllegalPlanError as error:
            self._fail(send, str(error), is_final=True)
            return False
        return True

    def submit(self, session_id: str, *, layer: int, start: int, stop: int) -> None:
        """Send one layer's KV of tokens ``[start, stop)``; it is in this rank's region now.

        Submit each (layer, token) once. Tokens outside the request's range are left out; a
        session that is over is ignored.

        Cost:
            One plan per session and range: submit all layers of a range one after the other.
        """
        send = self._open.get(session_id)
        if send is None or send.token.is_cancelled():
            return
        start, stop = max(start, send.request.start), min(stop, send.stop)
        if start >= stop:
            return
        try:
            fragments = self._plan(send, start, stop).for_rank(self._rank, 0, layer)
            if len(fragments.num_bytes):
                send.pending.append((layer, self._write(send, fragments)))
                send.submitted_bytes += fragments.total_bytes
        except TransferError as error:
            self._fail(send, f"layer {layer}: {error}")

    def cancel(self, message: CancelSession) -> None:
        """Stop new writes of a session; pending ones drain, then ``poll`` says quiet."""
        send = self._open.get(message.session_id)
        if send is not None:
            send.token.cancel()
            send.quiet_to = message.reply_to
        else:
            self._remember(message.session_id)
            self._say_quiet(message.session_id, message.reply_to)

    def fail(self, session_id: str, reason: str) -> None:
        """Give a session up from this side (a step failed) and tell the decoder why."""
        send = self._open.get(session_id)
        if send is not None:
            self._fail(send, reason)

    def forget_peer(self, address: str) -> None:
        """Give up every session of a decode rank whose generation is dead; it is told nothing."""
        for send in self._open.values():
            if send.request.reply_to == address:
                send.token.cancel()
                send.quiet_to = ""
                self._engine.forget(send.request.target)

    def poll(self) -> list[Outgoing]:
        """Follow pending writes and return messages to send.

        ``TransferEngine.poll`` must run too: it is what resets the descriptor that woke the rank.
        """
        for session_id, send in list(self._open.items()):
            self._follow(send)
            if send.is_written() and self._is_fenced(send):
                self._finish(session_id, send)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def is_drained(self, session_id: str) -> bool:
        """Whether this rank will never read blocks for the session again."""
        return session_id not in self._open

    def _owed_bytes(self, send: _Send) -> int:
        request = send.request
        self._plan(send, request.start, send.stop)
        owed = expected_bytes_by_source(
            self._sources,
            request.target.layout,
            start=request.start,
            stop=send.stop,
            seed=request.imm,
        )
        return owed[self._rank]

    def _plan(self, send: _Send, start: int, stop: int) -> TransferPlan:
        """Return the session's plan of a range; the last one made is kept."""
        if send.plan is None or (send.plan.start, send.plan.stop) != (start, stop):
            send.plan = plan_transfer(
                sources=self._sources,
                targets=[send.request.target.layout],
                source_blocks=send.block_ids,
                target_blocks=send.request.block_ids,
                start=start,
                stop=stop,
                seed=send.request.imm,
            ).prove()
        return send.plan

    def _write(self, send: _Send, fragments: Fragments) -> Completion:
        request = send.request
        return self._engine.write(
            self._region, request.target, fragments, imm=request.imm, token=send.token
        )

    def _follow(self, send: _Send) -> None:
        """Drop completed writes; the first real error fails the session."""
        done: list[tuple[int, Completion]] = []
        pending: list[tuple[int, Completion]] = []
        for one in send.pending:
            # Asked once: a write may end between two questions.
            (done if one[1].is_done() else pending).append(one)
        send.pending = pending
        errors = [f"layer {layer}: {one.error()}" for layer, one in done if one.error()]
        if errors and not send.token.is_cancelled():
            self._fail(send, errors[0])

    def _is_fenced(self, send: _Send) -> bool:
        """Whether no write is under way any more; what the fence found out fails the session."""
        if send.fence is None:
            send.fence = self._engine.end_writes(send.request.target, send.request.imm)
        if not send.fence.is_done():
            return False
        if send.fence.error():
            self._fail(send, send.fence.error())
        return True

    def _fail(self, send: _Send, reason: str, *, is_final: bool = False) -> None:
        if send.token.is_cancelled():
            return
        send.token.cancel()
        send.quiet_to = send.request.reply_to
        message = SessionFailed(
            session_id=send.request.session_id,
            rank=self._rank,
            generation=self._generation,
            reason=reason,
            is_final=is_final,
        )
        self._outgoing.append(Outgoing(send.quiet_to, message))

    def _finish(self, session_id: str, send: _Send) -> None:
        del self._open[session_id]
        self._remember(session_id)
        done = SendDone(session_id=session_id, rank=self._rank)
        self._outgoing.append(Outgoing(self._lead_address, done))
        if send.quiet_to:
            self._say_quiet(session_id, send.quiet_to)

    def _say_quiet(self, session_id: str, address: str) -> None:
        message = SessionQuiet(session_id=session_id, rank=self._rank, generation=self._generation)
        self._outgoing.append(Outgoing(address, message))

    def _remember(self, session_id: str) -> None:
        self._ended[session_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
