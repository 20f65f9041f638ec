"""One deployment's ranks on this host, for as long as its supervisor's connection lasts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace import __version__
from headrace.cluster.agent.keys import derive
from headrace.cluster.agent.orders import (
    AnyOrder,
    Beat,
    Exited,
    Line,
    NotSpawned,
    Open,
    Opened,
    Refused,
    Signal,
    Spawn,
    Spawned,
    Sweep,
)
from headrace.cluster.agent.wire import Wire
from headrace.cluster.process import RankProcess
from headrace.cluster.rundir import RunDir, open_run_dir
from headrace.core.errors import ConfigError, ProtocolError, UserError
from headrace.core.launch import LaunchSpec

SIGNALS = frozenset({signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """What a deployment gets on this host.

    Attributes:
        command: Program (absolute path) and arguments of a rank.
        find_model: Returns what ranks on this host open for a model that was asked for; raises
            ``UserError`` when it is not here.
        base: Where run folders live; None is the usual place.
        beat_s: Time between signs of life to the supervisor [s].
        silent_s: Silence after which a supervisor is taken for gone [s].
        reap_s: Time for ranks to be reaped after SIGKILL [s].
    """

    command: tuple[str, ...]
    find_model: Callable[[str], str]
    base: Path | None = None
    beat_s: float = 1.0
    silent_s: float = 10.0
    reap_s: float = 5.0


class AgentSession:
    """Obeys one supervisor; used from one event loop.

    Args:
        wire: Its connection, closed by ``run``.
        secret: The shared secret.
        config: See there.

    Attributes:
        is_ending: The connection is over; what is left of the deployment is being ended, which is
            bounded and must not be cut short.
    """

    def __init__(self, wire: Wire[AnyOrder], *, secret: bytes, config: SessionConfig) -> None:
        self.is_ending = False
        self._wire = wire
        self._secret = secret
        self._config = config
        self._run_dir: RunDir | None = None
        self._key = ""
        self._model = ""
        self._processes: dict[int, RankProcess] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Obey until the connection ends; then nothing of the deployment is left here."""
        beats = asyncio.create_task(self._beat())
        try:
            while True:
                self._obey(await self._wire.recv(self._config.silent_s))
        except (ConnectionError, ProtocolError, _RefusedError) as error:
            _log.info("a supervisor left: %s", error)
        finally:
            self.is_ending = True
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            # First of all: that this host is lost says more than how its ranks ended.
            await self._wire.close()
            await self._end()

    def _obey(self, order: AnyOrder) -> None:
        match order:
            case Open():
                self._open(order)
            case Spawn():
                self._spawn(order)
            case Signal():
                self._signal(order)
            case Sweep():
                self._opened().sweep_rank(order.replica, order.rank, order.generation)
            case Beat():
                pass

    def _open(self, order: Open) -> None:
        try:
            if order.version != __version__:
                raise ConfigError(
                    f"it runs headrace {__version__}, this one {order.version}: install the same"
                )
            self._model = self._config.find_model(order.model) if order.model else ""
            self._run_dir = self._run_dir or open_run_dir(self._config.base)
        except UserError as error:
            self._wire.send(Refused(error=str(error)))
            raise _RefusedError(str(error)) from error
        self._key = derive(self._secret, b"deployment", order.nonce).hex()
        _log.info("serving deployment %s", order.deployment_id)
        self._wire.send(Opened())

    def _spawn(self, order: Spawn) -> None:
        spec = self._localized(order.spec)
        if order.number in self._processes:
            raise ProtocolError(f"process {order.number} was spawned already")
        process = RankProcess(
            spec,
            command=self._config.command,
            on_line=lambda _, text: self._pass_line(order.number, text),
        )
        self._processes[order.number] = process
        watcher = asyncio.create_task(self._watch(order.number, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    def _signal(self, order: Signal) -> None:
        if order.signal not in SIGNALS:
            raise ProtocolError(f"signal {order.signal}: expected one of {sorted(SIGNALS)}")
        if order.number in self._processes:
            self._processes[order.number].send_signal(signal.Signals(order.signal))

    def _localized(self, spec: LaunchSpec) -> LaunchSpec:
        run_dir = self._opened()
        return msgspec.structs.replace(
            spec,
            deployment_id=run_dir.deployment_id,
            run_dir=os.fspath(run_dir.path),
            key=self._key,
            model=self._model or spec.model,
        )

    async def _watch(self, number: int, process: RankProcess) -> None:
        try:
            await process.spawn()
        except OSError as error:
            del self._processes[number]
            self._wire.send(NotSpawned(number=number, error=str(error)))
            return
        if self.is_ending:
            # It was on its way into life when everything else was ended.
            process.send_signal(signal.SIGKILL)
        self._wire.send(Spawned(number=number, pid=process.pid))
        ended = await process.wait()
        del self._processes[number]
        self._wire.send(
            Exited(number=number, exit_code=ended.exit_code, last_lines=ended.last_lines)
        )

    def _pass_line(self, number: int, text: str) -> None:
        # The last lines come again with the end of the process.
        if not self._wire.is_crowded:
            self._wire.send(Line(number=number, text=text))

    async def _beat(self) -> None:
        while True:
            self._wire.send(Beat())
            await asyncio.sleep(self._config.beat_s)

    async def _end(self) -> None:
        """End every rank: nobody is there any more to order it."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=self._config.reap_s)
        if self._run_dir is not None:
            self._run_dir.remove()

    def _opened(self) -> RunDir:
        if self._run_dir is None:
            raise ProtocolError("an order before the deployment was opened")
        return self._run_dir


class _RefusedError(Exception):
    """The deployment was refused; the supervisor has been told why."""
