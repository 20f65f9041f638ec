"""Supervises the rank processes of a deployment on this machine.

One supervisor starts all ranks, waits until each is ready, tells all of them of each other, and
watches them. A rank that fails or dies makes the deployment fail with an error that names it;
restarting comes later. Whatever happens, ``stop`` leaves no process, folder or segment.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

from headrace.cluster.events import Control, Hooks, RankExited
from headrace.cluster.process import RankProcess
from headrace.cluster.rundir import RunDir
from headrace.core.errors import HeadraceError, ReplicaError, UserError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import (
    AnyMessage,
    Failed,
    LoadProgress,
    RankInfo,
    Ready,
    ReplicaInfo,
    Shutdown,
    Topology,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """Bounds on the life of rank processes.

    Attributes:
        start_timeout_s: Longest time from spawning to the last rank's readiness [s].
        grace_s: Time for ranks to leave by themselves after a shutdown message [s].
        signal_s: Time for them to leave after SIGTERM, and to be reaped after SIGKILL [s]. With
            the defaults a stop takes at most 4.5 s.
        last_word_s: Time for a dead rank's own account of its end to arrive [s].
        command: Program (absolute path) and arguments of a rank.
    """

    start_timeout_s: float = 300.0
    grace_s: float = 2.5
    signal_s: float = 1.0
    last_word_s: float = 0.5
    command: tuple[str, ...] = (sys.executable, "-m", "headrace.engine")


class LocalSupervisor:
    """Starts, watches and stops the ranks of one deployment; used from one event loop.

    Args:
        specs: The ranks, replica by replica; ``supervisor`` of each is ``control``'s address.
        run_dir: The deployment's folder; removed by ``stop``.
        control: Open control socket. The supervisor is its only reader until ``stop``, and hands
            on what is not its own; the caller closes it.
        hooks: Where to report.
        config: Bounds.
    """

    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        *,
        run_dir: RunDir,
        control: Control,
        hooks: Hooks | None = None,
        config: SupervisorConfig | None = None,
    ) -> None:
        self._hooks = hooks or Hooks()
        self._config = config or SupervisorConfig()
        self._run_dir = run_dir
        self._control = control
        self._processes = [
            RankProcess(spec, command=self._config.command, on_line=self._hooks.on_line)
            for spec in specs
        ]
        self._ready: dict[str, Ready] = {}
        self._reader: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._error: HeadraceError | None = None
        self._is_stopping = False

    @property
    def is_ready(self) -> bool:
        """Whether every rank is up: all have said so, and none has failed since."""
        all_said = len(self._ready) == len(self._processes)
        return all_said and self._error is None and not self._is_stopping

    @property
    def ready(self) -> list[Ready]:
        """What the ranks that are up said of themselves, in the order of the specs."""
        names = [process.spec.name for process in self._processes]
        return [self._ready[name] for name in names if name in self._ready]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the living ranks by name."""
        return {p.spec.name: p.pid for p in self._processes if p.is_alive}

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
        self._reader = asyncio.create_task(self._guarded(self._read_messages()))
        self._watchers = [
            asyncio.create_task(self._guarded(self._watch(process))) for process in self._processes
        ]
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await self._wait_ready()
        except TimeoutError as error:
            raise ReplicaError(
                f"{', '.join(self._missing())} not ready after {self._config.start_timeout_s:g} s: "
                f"see the lines above, or allow more time to start"
            ) from error
        topology = _topology([process.spec for process in self._processes])
        for process in self._processes:
            self._control.send(process.spec.address, topology)
        _log.info("%d ranks ready in %.1f s", len(self._ready), time.monotonic() - started_s)
        return topology

    async def _wait_ready(self) -> None:
        while self._missing():
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    def _missing(self) -> list[str]:
        names = [process.spec.name for process in self._processes]
        return [name for name in names if name not in self._ready]

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Let no task of the supervisor, nor a hook, fail unheard."""
        try:
            await work
        except Exception as error:
            _log.exception("a task of the supervisor failed")
            self._fail(ReplicaError(f"the supervisor itself failed: {error!r}"))

    async def _read_messages(self) -> None:
        while True:
            self._handle(await self._control.recv())

    def _handle(self, message: AnyMessage) -> None:
        if isinstance(message, Ready):
            self._take_ready(message)
        elif isinstance(message, Failed):
            self._hooks.on_event(message)
            self._fail(_as_error(message))
        elif isinstance(message, LoadProgress):
            self._hooks.on_event(message)
        else:
            self._hooks.on_message(message)

    def _take_ready(self, ready: Ready) -> None:
        name, generation = f"{ready.replica}.{ready.info.rank}", ready.info.generation
        expected = {p.spec.name: p.spec.generation for p in self._processes}
        if expected.get(name) != generation:
            _log.warning("refused: %s of generation %d says it is ready", name, generation)
            return
        self._ready[name] = ready
        self._hooks.on_event(ready)
        self._changed.set()

    async def _watch(self, process: RankProcess) -> None:
        try:
            await process.spawn()
        except OSError as error:
            self._fail(ReplicaError(f"{process.spec.name} could not be started: {error}"))
            return
        ended = await process.wait()
        self._hooks.on_event(ended)
        if not self._is_stopping:
            self._fail(await self._account_of(ended))

    async def _account_of(self, ended: RankExited) -> HeadraceError:
        """Prefer a dead rank's own words, which may still be on their way."""
        when = "" if ended.name in self._ready else " before it was ready"
        if not ended.is_signal:
            try:
                async with asyncio.timeout(self._config.last_word_s):
                    return await self.failure()
            except TimeoutError:
                _log.info("%s ended without a word", ended.name)
        return ReplicaError(ended.describe(when))

    def _fail(self, error: HeadraceError) -> None:
        # The first error is the cause; what follows, as a rule, are its consequences.
        if self._error is None and not self._is_stopping:
            self._error = error
            self._changed.set()

    def _ask_to_leave(self) -> None:
        for process in self._processes:
            if process.spec.name in self._ready:
                self._control.send(process.spec.address, Shutdown())
            else:
                # It reads no messages yet.
                process.send_signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)

    async def _wait_gone(self, timeout_s: float) -> None:
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=timeout_s)

    async def _cancel_tasks(self) -> None:
        tasks = [task for task in (self._reader, *self._watchers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_error(failed: Failed) -> HeadraceError:
    if failed.is_user_error:
        return UserError(failed.error)
    return ReplicaError(f"{failed.replica}.{failed.rank} failed: {failed.error}")


def _topology(specs: Sequence[LaunchSpec]) -> Topology:
    replicas: dict[str, ReplicaInfo] = {}
    for spec in specs:
        info = RankInfo(rank=spec.rank, generation=spec.generation, address=spec.address)
        replica = ReplicaInfo(name=spec.replica, role=spec.role, sharding=spec.sharding, ranks=[])
        replicas.setdefault(spec.replica, replica).ranks.append(info)
    return Topology(replicas=list(replicas.values()))
