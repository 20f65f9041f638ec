"""One replica over its generations: started, watched, and re-formed when a rank is lost.

    starting --all ready--> up --a rank lost--> re-forming --all ready--> up
                                                re-forming --a rank lost--> re-forming
                                                re-forming --no restart left--> failed

Losing one rank ends the generation of all: collectives need everyone. Survivors keep their
weights and go on under the next generation; only the lost are started anew.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from headrace.cluster.events import Event, RankExited, ReplicaBack, ReplicaLost
from headrace.cluster.process import RankHandle
from headrace.cluster.restarts import RestartBudget, RestartConfig
from headrace.cluster.seat import Seat
from headrace.core.errors import HeadraceError, ReplicaError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import Broken, Failed, LoadProgress, Message, Ready, Reform, ReplicaInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBounds:
    """Bounds on the life of a replica.

    Attributes:
        form_timeout_s: Longest time from a re-forming's beginning to the last rank's readiness [s].
        leave_timeout_s: Longest time for a survivor to leave the old generation [s]; longer than
            any honest step.
        silent_s: Silence after which a rank is ended [s].
        settle_s: Time for the whole extent of a loss to show [s].
        last_word_s: Time for a dead rank's own account of its end to arrive [s].
        restarts: How often it may be restarted.
    """

    form_timeout_s: float = 300.0
    leave_timeout_s: float = 30.0
    silent_s: float = 10.0
    settle_s: float = 0.2
    last_word_s: float = 0.5
    restarts: RestartConfig = RestartConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a replica needs of its supervisor; all are called on the event loop.

    Attributes:
        make_process: Makes the process of a rank, not yet spawned.
        tell: Queues a message for a generation of a rank.
        forget: Drops what is kept of a generation of a rank that is gone.
        on_event: Hears of every event of a rank's or the replica's life.
        on_change: The topology changed: ranks fell quiet, or the replica is up or down.
        on_failure: The deployment cannot go on.
        begin: Begins work of which no error may be lost.
    """

    make_process: Callable[[LaunchSpec], RankHandle]
    tell: Callable[[LaunchSpec, Message], object]
    forget: Callable[[LaunchSpec], None]
    on_event: Callable[[Event], None]
    on_change: Callable[[], None]
    on_failure: Callable[[HeadraceError], None]
    begin: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class Replica:
    """Supervises the ranks of one replica.

    Args:
        specs: Its ranks, in rank order, of one generation.
        surroundings: See there.
        bounds: See there.
    """

    def __init__(
        self, specs: Sequence[LaunchSpec], *, surroundings: Surroundings, bounds: ReplicaBounds
    ) -> None:
        self.name = specs[0].replica
        self.seats = [Seat(spec, surroundings.make_process(spec)) for spec in specs]
        self.is_up = False
        self._generation = specs[0].generation
        self._around = surroundings
        self._bounds = bounds
        self._budget = RestartBudget(bounds.restarts)
        self._was_up = False
        self._is_stopping = False
        self._cause: HeadraceError | None = None
        self._lost_s = 0.0
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def info(self) -> ReplicaInfo:
        """The replica as the topology shall know it."""
        spec = self.seats[0].spec
        return ReplicaInfo(
            name=self.name,
            role=spec.role,
            sharding=spec.sharding,
            ranks=[seat.writing for seat in self.seats if seat.writing is not None],
            is_up=self.is_up,
        )

    @property
    def missing(self) -> list[str]:
        """Names of the ranks that are not ready."""
        return [seat.name for seat in self.seats if seat.ready is None]

    @property
    def absent(self) -> list[str]:
        """The missing ranks in words, with how far the start of each has come."""
        return [seat.standing for seat in self.seats if seat.ready is None]

    def start(self) -> None:
        """Begin to start every rank."""
        for seat in self.seats:
            self._spawn(seat)

    def keep(self) -> None:
        """The deployment is up: from now on a lost rank is replaced."""
        self.is_up = self._was_up = True
        self._keeper = self._around.begin(self._keep())

    async def end_keeping(self) -> None:
        """Replace no rank any more: all are about to be ended."""
        self._is_stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    # -- what is heard -------------------------------------------------------------------

    def on_ready(self, ready: Ready) -> None:
        """Take a rank's word that it is ready."""
        seat = self._seat(ready.info.rank)
        if seat is None or not seat.take_ready(ready, time.monotonic()):
            name, generation = f"{self.name}.{ready.info.rank}", ready.info.generation
            _log.warning("refused: %s of generation %d says it is ready", name, generation)
            return
        if seat.previous is not None:
            self._around.forget(seat.previous)
        self._around.on_event(ready)
        self._changed.set()
        if self._was_up:
            self._around.on_change()

    def on_loading(self, progress: LoadProgress) -> None:
        """Take a rank's word on how far its weights are."""
        seat = self._seat(progress.rank)
        if seat is not None:
            seat.loading = progress

    def on_broken(self, broken: Broken) -> None:
        """Take a rank's word that it has left a generation."""
        seat = self._seat(broken.rank)
        if seat is None:
            return
        if seat.take_left(broken.generation):
            self._lose(ReplicaError(broken.error))
        self._changed.set()
        self._around.on_change()

    def on_failed(self, failed: Failed, error: HeadraceError) -> None:
        """Take a rank's account of why its process is about to end."""
        seat = self._seat(failed.rank)
        if seat is not None:
            seat.say(error)

    def on_heard(self, rank: int, generation: int) -> None:
        """Take a sign of life."""
        seat = self._seat(rank)
        if seat is not None and seat.spec.generation == generation:
            seat.heard_s = time.monotonic()

    def end_silent(self) -> None:
        """End ranks that were ready and have not been heard for too long."""
        now_s = time.monotonic()
        for seat in self.seats:
            if seat.ready is None or now_s - seat.heard_s <= self._bounds.silent_s:
                continue
            seat.say(
                ReplicaError(f"{seat.name} was silent for {now_s - seat.heard_s:.1f} s and ended")
            )
            seat.process.send_signal(signal.SIGKILL)

    def forgive_silence(self) -> None:
        """It was we who did not listen: begin to count anew."""
        for seat in self.seats:
            seat.heard_s = time.monotonic()

    # -- processes -----------------------------------------------------------------------

    def _spawn(self, seat: Seat) -> None:
        seat.word = None
        seat.has_word.clear()
        seat.watcher = self._around.begin(self._watch(seat, seat.process))

    async def _watch(self, seat: Seat, process: RankHandle) -> None:
        try:
            await process.spawn()
        except OSError as error:
            self._on_gone(seat, ReplicaError(f"{seat.name} could not be started: {error}"))
            return
        ended = await process.wait()
        when = "" if seat.ready is not None or self._was_up else " before it was ready"
        self._around.on_event(ended)
        self._on_gone(seat, await self._account_of(seat, ended, when))

    async def _account_of(self, seat: Seat, ended: RankExited, when: str) -> HeadraceError:
        """Prefer a dead rank's own words, which may still be on their way."""
        if not ended.is_signal and not self._is_stopping:
            try:
                async with asyncio.timeout(self._bounds.last_word_s):
                    await seat.has_word.wait()
            except TimeoutError:
                _log.info("%s ended without a word", ended.name)
        return seat.word or ReplicaError(ended.describe(when))

    def _on_gone(self, seat: Seat, error: HeadraceError) -> None:
        seat.ready = seat.writing = None
        seat.is_waiting = False
        if self._is_stopping:
            return
        self._around.forget(seat.spec)
        self._lose(error)
        self._around.on_change()

    def _lose(self, error: HeadraceError) -> None:
        # The first error is the cause; what follows, as a rule, are its consequences.
        self._cause = self._cause or error
        self._lost_s = self._lost_s or time.monotonic()
        self.is_up = False
        self._changed.set()
        if not self._was_up:
            self._around.on_failure(error)

    # -- generations ---------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            if self._cause is None:
                await self._changed.wait()
                continue
            await asyncio.sleep(self._bounds.settle_s)
            delay_s = self._budget.take(time.monotonic())
            if delay_s is None:
                self._around.on_failure(self._last_failure(self._cause))
                return
            if await self._reform(delay_s):
                self.is_up = True
                self._around.on_change()
                after_s = time.monotonic() - self._lost_s
                self._lost_s = 0.0
                self._around.on_event(
                    ReplicaBack(replica=self.name, generation=self._generation, after_s=after_s)
                )

    async def _reform(self, delay_s: float) -> bool:
        """Bring every seat to the next generation; False when another rank was lost over it."""
        # What was on its way into the generation that is lost may wait there for a long time.
        await self._end([seat for seat in self.seats if not seat.can_follow])
        cause, self._cause = self._cause, None
        self._generation += 1
        self._around.on_event(
            ReplicaLost(replica=self.name, generation=self._generation, reason=str(cause))
        )
        survivors = [seat for seat in self.seats if seat.can_follow]
        for seat in survivors:
            self._around.tell(seat.spec, Reform(generation=self._generation))
        for seat in self.seats:
            seat.move_to(self._generation)
        self._around.on_change()
        if delay_s:
            await asyncio.sleep(delay_s)
        for seat in self.seats:
            if seat not in survivors:
                seat.process = self._around.make_process(seat.spec)
                seat.loading = None
                self._spawn(seat)
        return await self._await_formed(survivors)

    async def _await_formed(self, survivors: list[Seat]) -> bool:
        began_s = time.monotonic()
        while self._cause is None and self.missing:
            self._changed.clear()
            waited_s = time.monotonic() - began_s
            stuck = [seat.name for seat in survivors if self._is_in_old(seat)]
            bound_s = self._bounds.leave_timeout_s if stuck else self._bounds.form_timeout_s
            if waited_s >= bound_s:
                names = ", ".join(stuck or self.absent)
                what = "did not leave its generation" if stuck else "not ready"
                self._lose(ReplicaError(f"{names} {what} after {waited_s:.1f} s"))
                break
            try:
                async with asyncio.timeout(bound_s - waited_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return self._cause is None

    def _is_in_old(self, seat: Seat) -> bool:
        return seat.writing is not None and seat.writing.generation != self._generation

    async def _end(self, seats: list[Seat]) -> None:
        """End processes and wait until they have been reaped."""
        watchers = [seat.watcher for seat in seats if seat.watcher is not None]
        for seat in seats:
            seat.process.send_signal(signal.SIGKILL)
        if watchers:
            await asyncio.wait(watchers)

    def _last_failure(self, cause: HeadraceError) -> HeadraceError:
        config = self._bounds.restarts
        if not config.max_restarts:
            return cause
        return ReplicaError(
            f"{cause}; {self.name} was restarted {config.max_restarts} times within "
            f"{config.window_s:g} s already: it is given up"
        )

    def _seat(self, rank: int) -> Seat | None:
        return self.seats[rank] if 0 <= rank < len(self.seats) else None
