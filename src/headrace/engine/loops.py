"""The loops that ranks run: take messages, step while there is work, sleep when there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.core.clock import Clock
from headrace.core.errors import ReplicaError
from headrace.core.messages import (
    Abort,
    AnyMessage,
    CancelSession,
    Heartbeat,
    OpenSend,
    PrefillRequest,
    RunStep,
    SendDone,
    SessionDone,
    SessionFailed,
    SessionQuiet,
    SessionStarted,
    Submit,
    Topology,
    Wake,
)
from headrace.engine.acquaintances import Acquaintances
from headrace.engine.decode import DecodeRank
from headrace.engine.flight_log import FlightLog
from headrace.engine.lockstep import Lockstep, StepKind
from headrace.engine.orders import Orders
from headrace.engine.prefill import PrefillLead, PrefillWorker
from headrace.engine.receiving import Receiving
from headrace.kvcache.pool import BlockPool
from headrace.transfer.control import ControlSocket
from headrace.transfer.engine import TransferEngine

# A sleeping rank looks up this often even if nothing wakes it: deadlines of sessions pass then.
IDLE_WAKE_S = 1.0
SHORT_WAIT_S = 0.002


class Loop(Protocol):
    """What ``run_rank`` drives."""

    def run(self) -> int | None:
        """Work until the generation is over; return the next one, or None after a shutdown.

        Raises:
            ReplicaError: The group broke.
        """
        ...


def _run_until(
    orders: Orders,
    *,
    turn: Callable[[], None],
    take_messages: Callable[[], None],
    flight: FlightLog | None,
) -> int | None:
    """Turn until told to leave; a collective that fails because peers left then is no error."""
    try:
        while not orders.is_leaving:
            turn()
    except ReplicaError as error:
        # Told to leave, peers may have done so while this rank was inside a collective.
        take_messages()
        if not orders.is_leaving:
            if flight is not None:
                error.args = (flight.leave(error),)
            raise
    return orders.following


class DecodeLoop:
    """Runs a decode or mono rank.

    Args:
        rank: The rank's state.
        orders: What ends its generation.
        control: Its control socket.
        lockstep: Agreement with the other ranks of the replica.
        receiving: Its transfers; None in ``mono``.
        engine: The transfer engine, for its wake-up descriptor; None in ``mono``.
        pool: Its blocks, checked whenever the rank falls idle.
        clock: Time.
        flight: Writes where the rank was when a collective failed.
    """

    def __init__(
        self,
        *,
        rank: DecodeRank,
        orders: Orders,
        control: ControlSocket,
        lockstep: Lockstep,
        receiving: Receiving | None,
        engine: TransferEngine | None,
        pool: BlockPool,
        clock: Clock,
        flight: FlightLog | None = None,
    ) -> None:
        self._rank = rank
        self._flight = flight
        self._control = control
        self._lockstep = lockstep
        self._receiving = receiving
        self._engine = engine
        self._pool = pool
        self._clock = clock
        self._was_idle = False
        self._orders = orders
        self._known = Acquaintances(control.forget)

    def run(self) -> int | None:
        """See ``Loop.run``."""
        return _run_until(
            self._orders,
            turn=self._turn,
            take_messages=self._take_messages,
            flight=self._flight,
        )

    def _turn(self) -> None:
        self._take_messages()
        self._rank.advance()
        wish = StepKind.DECODE if self._rank.wants_step else StepKind.IDLE
        if self._lockstep.next_step(wish) is StepKind.IDLE:
            if not self._orders.is_leaving:
                self._sleep()
            return
        self._was_idle = False
        if not self._rank.step() and wish is StepKind.DECODE:
            # Blocks are short until a transfer ends: give the prefillers the core.
            self._control.wait(SHORT_WAIT_S, *self._filenos())

    def _take_messages(self) -> None:
        for message in self._control.recv_all():
            self._take(message)
        if self._receiving is not None:
            self._receiving.poll()

    def _take(self, message: AnyMessage) -> None:
        if self._orders.take(message):
            return
        match message:
            case Submit():
                self._rank.submit(message)
            case Abort():
                self._rank.abort(message)
            case Wake():
                self._lockstep.on_wake(message.step)
            case Topology():
                self._known.update(message)
                if self._receiving is not None:
                    self._receiving.on_topology(message)
            case SessionQuiet() | SessionFailed() | SessionStarted() | SessionDone() | Heartbeat():
                if self._receiving is not None:
                    self._receiving.on_message(message)

    def _sleep(self) -> None:
        is_idle = not self._rank.has_work and self._pool.is_idle
        if is_idle and not self._was_idle:
            # Once for each fall into idleness: it looks at every block, and peers' heartbeats
            # wake a rank often.
            self._pool.check_invariants()
        self._was_idle = is_idle
        deadline_s = self._receiving.next_deadline_s() if self._receiving is not None else None
        left_s = IDLE_WAKE_S if deadline_s is None else deadline_s - self._clock.now_s()
        self._control.wait(min(IDLE_WAKE_S, max(0.0, left_s)), *self._filenos())

    def _filenos(self) -> list[int]:
        return [self._engine.fileno()] if self._engine is not None else []


class PrefillLoop:
    """Runs a prefill rank; with a lead it also runs the replica.

    Args:
        worker: This rank's part of every step.
        lead: The replica's queue, on rank 0 only.
        orders: What ends its generation.
        control: The rank's control socket.
        engine: The transfer engine, for its wake-up descriptor.
        flight: Writes where the rank was when a collective failed.
    """

    def __init__(
        self,
        *,
        worker: PrefillWorker,
        lead: PrefillLead | None,
        orders: Orders,
        control: ControlSocket,
        engine: TransferEngine,
        flight: FlightLog | None = None,
    ) -> None:
        self._worker = worker
        self._flight = flight
        self._lead = lead
        self._control = control
        self._engine = engine
        self._orders = orders
        self._known = Acquaintances(control.forget)

    def run(self) -> int | None:
        """See ``Loop.run``."""
        return _run_until(
            self._orders,
            turn=self._turn,
            take_messages=self._take_messages,
            flight=self._flight,
        )

    def _turn(self) -> None:
        self._take_messages()
        self._worker.poll()
        if self._lead is not None:
            self._lead.advance()
            if self._lead.wants_step:
                self._lead.step()
                return
        # Completions ring the engine's descriptor; there is nothing else to wait for.
        if not self._orders.is_leaving:
            self._control.wait(IDLE_WAKE_S, self._engine.fileno())
        self._engine.poll()

    def _take_messages(self) -> None:
        for message in self._control.recv_all():
            if self._orders.take(message):
                continue
            if self._orders.is_leaving:
                return
            match message:
                case Topology():
                    self._on_topology(message)
                case _ if self._lead is not None:
                    self._take_as_lead(self._lead, message)
                case _:
                    self._take_as_follower(message)

    def _on_topology(self, topology: Topology) -> None:
        """Forget ranks that are gone: nobody will cancel their sessions."""
        for address in self._known.update(topology):
            self._worker.forget_peer(address)
            if self._lead is not None:
                self._lead.forget_peer(address)

    def _take_as_lead(self, lead: PrefillLead, message: AnyMessage) -> None:
        match message:
            case PrefillRequest():
                lead.on_request(message)
            case CancelSession():
                lead.on_cancel(message)
            case SendDone():
                lead.on_send_done(message)

    def _take_as_follower(self, message: AnyMessage) -> None:
        match message:
            case OpenSend():
                self._worker.open(message)
            case RunStep() if message.step > self._worker.steps:
                self._worker.run(message)
            case CancelSession():
                self._worker.cancel(message)
