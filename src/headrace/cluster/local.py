"""Supervises the rank processes of a deployment, wherever they run.

One supervisor starts all ranks, waits until each is ready, tells all of them of each other, and
watches them. A rank that fails before the deployment is up makes the start fail with an error that
names it; one that is lost later is replaced, and its replica re-forms. Whatever happens, ``stop``
leaves no process, folder or segment.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.cluster.agent.hosts import Hosts
from headrace.cluster.events import Control, Hooks
from headrace.cluster.process import RankHandle, RankProcess
from headrace.cluster.replica import Replica, ReplicaBounds, Surroundings
from headrace.cluster.rundir import RunDir
from headrace.cluster.seat import Seat
from headrace.core.errors import HeadraceError, ReplicaError, UserError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import (
    AnyMessage,
    Broken,
    Failed,
    Heartbeat,
    LoadProgress,
    Message,
    Ready,
    Shutdown,
    Topology,
)

# How often silence is looked for. A look that comes late says that this process did not run.
LOOK_S = 0.5
LATE_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """Bounds on the life of rank processes.

    Attributes:
        start_timeout_s: Longest time from spawning to the last rank's readiness [s].
        grace_s: Time for ranks to leave by themselves after a shutdown message [s].
        signal_s: Time for them to leave after SIGTERM, and to be reaped after SIGKILL [s]. With
            the defaults a stop takes at most 4.5 s.
        command: Program (absolute path) and arguments of a rank.
        replica: Bounds on the life of a replica.
    """

    start_timeout_s: float = 300.0
    grace_s: float = 2.5
    signal_s: float = 1.0
    command: tuple[str, ...] = (sys.executable, "-m", "headrace.engine")
    replica: ReplicaBounds = ReplicaBounds()


class LocalSupervisor:
    """Starts, watches, replaces and stops the ranks of one deployment; used from one event loop.

    Args:
        specs: The ranks, replica by replica; ``supervisor`` of each is ``control``'s address.
        run_dir: The deployment's folder; removed by ``stop``.
        control: Open control socket. The supervisor is its only reader until ``stop``, and hands
            on what is not its own; the caller closes it.
        hooks: Where to report.
        config: Bounds.
        hosts: The other hosts of the deployment; None when there are none.
    """

    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        *,
        run_dir: RunDir,
        control: Control,
        hooks: Hooks | None = None,
        config: SupervisorConfig | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._hooks = hooks or Hooks()
        self._config = config or SupervisorConfig()
        self._run_dir = run_dir
        self._control = control
        self._hosts = hosts or Hosts()
        self._addresses: dict[tuple[str, int], str] = {}
        around = Surroundings(
            make_process=self._make_process,
            tell=self._tell,
            forget=self._forget,
            on_event=self._hooks.on_event,
            on_change=self._publish,
            on_failure=self._fail,
            begin=self._begin,
        )
        self._replicas = {
            name: Replica(list(ranks), surroundings=around, bounds=self._config.replica)
            for name, ranks in groupby(specs, key=lambda spec: spec.replica)
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._error: HeadraceError | None = None
        self._is_started = False
        self._is_stopping = False

    @property
    def is_ready(self) -> bool:
        """Whether every replica is up."""
        is_up = all(replica.is_up for replica in self._replicas.values())
        return is_up and self._error is None and not self._is_stopping

    @property
    def ready(self) -> list[Ready]:
        """What the ranks that are up said of themselves, in the order of the specs."""
        return [seat.ready for seat in self._seats() if seat.ready is not None]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the living ranks by name."""
        return {seat.name: seat.process.pid for seat in self._seats() if seat.process.is_alive}

    @property
    def topology(self) -> Topology:
        """The replicas as they are now."""
        return Topology(replicas=[replica.info for replica in self._replicas.values()])

    async def start(self) -> Topology:
        """Start every rank, wait until all are ready, and tell each of the others.

        Returns:
            The topology that was sent to all ranks.

        Raises:
            UserError: A rank refused to start for a reason that a person can mend.
            ReplicaError: A rank died, failed, or was not ready in time. In every case of error,
                cancellation included, everything is stopped and swept first.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    def send_signal(self, rank: str, number: signal.Signals) -> None:
        """Signal the rank of a name, e.g. ``prefill0.1``; nothing when it does not live."""
        for seat in self._seats():
            if seat.name == rank:
                seat.process.send_signal(number)

    async def failure(self) -> HeadraceError:
        """Wait until the deployment cannot go on; return why. ``stop`` is still to be called."""
        while self._error is None:
            self._changed.clear()
            await self._changed.wait()
        return self._error

    async def stop(self) -> None:
        """End every rank and remove what the deployment left; idempotent.

        Guarantees:
            Takes at most ``grace_s + 2 * signal_s``, also with ranks that are stuck or stopped.
        """
        self._is_stopping = True
        try:
            for replica in self._replicas.values():
                await replica.end_keeping()
            self._ask_to_leave()
            await self._wait_gone(self._config.grace_s)
            self._signal(signal.SIGTERM)
            await self._wait_gone(self._config.signal_s)
        finally:
            # Also when this call is cancelled: a second Ctrl-C must not leave anything behind.
            self._signal(signal.SIGKILL)
            await self._wait_gone(self._config.signal_s)
            await self._cancel_tasks()
            self._run_dir.remove()

    async def _start(self) -> Topology:
        started_s = time.monotonic()
        self._tasks = [
            self._begin(self._read_messages()),
            self._begin(self._look_for_silence()),
        ]
        for replica in self._replicas.values():
            replica.start()
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await self._wait_ready()
        except TimeoutError as error:
            raise ReplicaError(
                f"{', '.join(self._absent())} not ready after {self._config.start_timeout_s:g} s: "
                f"see the lines above, or allow more time to start"
            ) from error
        for replica in self._replicas.values():
            replica.keep()
        topology = self.topology
        self._tell_all(topology)
        self._is_started = True
        _log.info("%d ranks ready in %.1f s", len(self.ready), time.monotonic() - started_s)
        return topology

    async def _wait_ready(self) -> None:
        while self._missing():
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    def _absent(self) -> list[str]:
        return [words for replica in self._replicas.values() for words in replica.absent]

    def _missing(self) -> list[str]:
        return [name for replica in self._replicas.values() for name in replica.missing]

    def _seats(self) -> Iterator[Seat]:
        for replica in self._replicas.values():
            yield from replica.seats

    def _make_process(self, spec: LaunchSpec) -> RankHandle:
        host = self._hosts.of(spec)
        if host is not None:
            return host.process(spec)
        return RankProcess(spec, command=self._config.command, on_line=self._hooks.on_line)

    # -- messages ------------------------------------------------------------------------

    async def _read_messages(self) -> None:
        while True:
            self._handle(await self._control.recv())

    def _handle(self, message: AnyMessage) -> None:
        match message:
            case Ready():
                rank, info = f"{message.replica}.{message.info.rank}", message.info
                self._addresses[rank, info.generation] = info.address
                self._of(message.replica, lambda replica: replica.on_ready(message))
                self._changed.set()
            case Broken():
                rank = f"{message.replica}.{message.rank}"
                self._addresses[rank, message.generation] = message.address
                self._of(message.replica, lambda replica: replica.on_broken(message))
            case Failed():
                self._hooks.on_event(message)
                self._take_failed(message)
            case LoadProgress():
                self._of(message.replica, lambda replica: replica.on_loading(message))
                self._hooks.on_event(message)
            case Heartbeat():
                info = message.info
                self._of(message.replica, lambda it: it.on_heard(info.rank, info.generation))
                self._hooks.on_message(message)
            case _:
                self._hooks.on_message(message)

    def _of(self, name: str, act: Callable[[Replica], None]) -> None:
        replica = self._replicas.get(name)
        if replica is not None:
            act(replica)

    def _take_failed(self, failed: Failed) -> None:
        error = _as_error(failed)
        if not self._is_started or isinstance(error, UserError):
            # Starting it again would not help: a person must.
            self._fail(error)
        else:
            self._of(failed.replica, lambda replica: replica.on_failed(failed, error))

    async def _look_for_silence(self) -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            is_late = time.monotonic() - before_s > LOOK_S + LATE_S
            for replica in self._replicas.values():
                if is_late:
                    replica.forgive_silence()
                elif self._is_started:
                    replica.end_silent()

    # -- what replicas report ------------------------------------------------------------

    def _publish(self) -> None:
        if self._is_started and not self._is_stopping:
            topology = self.topology
            self._tell_all(topology)
            self._hooks.on_message(topology)

    def _tell_all(self, message: Message) -> None:
        for ready in self.ready:
            self._control.send(ready.info.address, message)

    def _tell(self, spec: LaunchSpec, message: Message) -> None:
        self._control.send(self._address_of(spec), message)

    def _address_of(self, spec: LaunchSpec) -> str:
        # What it said, which holds on every host; before it said anything, its host's own name.
        return self._addresses.get((spec.name, spec.generation)) or spec.address

    def _forget(self, spec: LaunchSpec) -> None:
        self._control.forget(self._address_of(spec))
        self._addresses.pop((spec.name, spec.generation), None)
        host = self._hosts.of(spec)
        if host is not None:
            host.sweep(spec)
        else:
            self._run_dir.sweep_rank(spec.replica, spec.rank, spec.generation)

    def _fail(self, error: HeadraceError) -> None:
        # The first error is the cause; what follows, as a rule, are its consequences.
        if self._error is None and not self._is_stopping:
            self._error = error
        self._changed.set()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let no task of the supervisor, nor a hook, fail unheard."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a task of the supervisor failed", exc_info=error)
            self._fail(ReplicaError(f"the supervisor itself failed: {error!r}"))

    # -- the end -------------------------------------------------------------------------

    def _ask_to_leave(self) -> None:
        for seat in self._seats():
            if seat.ready is not None:
                self._control.send(seat.ready.info.address, Shutdown())
            else:
                # It reads no messages yet.
                seat.process.send_signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for seat in self._seats():
            seat.process.send_signal(number)

    async def _wait_gone(self, timeout_s: float) -> None:
        watchers = [seat.watcher for seat in self._seats() if seat.watcher is not None]
        if watchers:
            await asyncio.wait(watchers, timeout=timeout_s)

    async def _cancel_tasks(self) -> None:
        watchers = [seat.watcher for seat in self._seats() if seat.watcher is not None]
        tasks = [*self._tasks, *watchers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_error(failed: Failed) -> HeadraceError:
    if failed.is_user_error:
        return UserError(failed.error)
    name = f"{failed.replica}.{failed.rank}"
    # What a rank waited for in vain begins with its name.
    return ReplicaError(failed.error if name in failed.error else f"{name} failed: {failed.error}")
