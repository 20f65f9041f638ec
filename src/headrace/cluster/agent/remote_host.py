"""The supervisor's end of an agent: ranks on another host, handled like processes of this one.

A host is there while its connection lives. When that ends, all its ranks are lost at once (the
agent kills them as soon as it notices, ``session.silent_s`` later at the most), and the host is
called again and again until it answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import msgspec

from headrace.cluster.agent.orders import (
    AnyReport,
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
from headrace.cluster.agent.remote_process import RemoteProcess
from headrace.cluster.agent.wire import Wire, hang_up, meet_agent
from headrace.core.errors import ConfigError, HeadraceError, ProtocolError
from headrace.core.launch import LaunchSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """Bounds on talking to an agent.

    Attributes:
        connect_s: How long connecting, shaking hands and opening may take [s].
        beat_s: Time between signs of life to the agent [s].
        silent_s: Silence after which the host is lost [s].
        recall_s: Time between two calls of a host that is lost [s].
        patience_s: How long a rank's start waits for its host to be back [s].
    """

    connect_s: float = 5.0
    beat_s: float = 1.0
    silent_s: float = 10.0
    recall_s: float = 0.5
    patience_s: float = 30.0


class RemoteHost:
    """One host of a deployment, through its agent; used from one event loop.

    Args:
        name: The host's name in the deployment.
        address: ``(host, port)`` of its agent.
        secret: The shared secret.
        opening: What begins each connection.
        on_line: Called with a rank's name and each line that it writes.
        config: Bounds.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        *,
        secret: bytes,
        opening: Open,
        on_line: Callable[[str, str], None],
        config: RemoteConfig | None = None,
    ) -> None:
        self.name = name
        self._address = address
        self._secret = secret
        self._opening = opening
        self._on_line = on_line
        self._config = config or RemoteConfig()
        self._numbers = count(1)
        self._wire: Wire[AnyReport] | None = None
        self._is_there = asyncio.Event()
        self._fault = "it was not called yet"
        self._processes: dict[int, RemoteProcess] = {}
        self._keeper: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"host {self.name} ({self._address[0]}:{self._address[1]})"

    async def open(self) -> None:
        """Call the host for the first time, and keep calling it whenever it is lost.

        Raises:
            ConfigError: It does not answer, or refuses, and why.
        """
        try:
            wire = await self._call()
        except HeadraceError as error:
            raise ConfigError(f"{self}: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"{self}: no agent answers ({_reason(error)}); start one there with "
                f"'headrace agent --listen ADDRESS:PORT --key-file FILE'"
            ) from error
        self._keeper = asyncio.create_task(self._keep(wire))

    async def close(self) -> None:
        """Hang up; what still runs there is ended by the agent. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def process(self, spec: LaunchSpec) -> RemoteProcess:
        """Return the process of a rank on this host, not yet spawned."""
        return RemoteProcess(spec, host=self, number=next(self._numbers))

    def sweep(self, spec: LaunchSpec) -> None:
        """Have what a generation of a rank left there deleted; its process is gone."""
        self._order(Sweep(replica=spec.replica, rank=spec.rank, generation=spec.generation))

    # -- for its processes ---------------------------------------------------------------

    async def spawn(self, process: RemoteProcess) -> None:
        """Order a rank's start, once the host is there.

        Raises:
            OSError: The host does not come back in time.
        """
        try:
            async with asyncio.timeout(self._config.patience_s):
                await self._is_there.wait()
        except TimeoutError as error:
            raise OSError(f"{self} is not there: {self._fault}") from error
        self._processes[process.number] = process
        # The key never travels: the agent derives it as we did.
        spec = msgspec.structs.replace(process.spec, key="", run_dir="")
        self._order(Spawn(number=process.number, spec=spec))

    def signal(self, order: Signal) -> None:
        """Signal a rank; nothing while the host is lost."""
        self._order(order)

    def _order(self, order: Spawn | Signal | Sweep) -> None:
        # While the host is lost no rank of ours runs there that could be meant.
        if self._wire is not None:
            self._wire.send(order)

    # -- the connection ------------------------------------------------------------------

    async def _call(self) -> Wire[AnyReport]:
        try:
            async with asyncio.timeout(self._config.connect_s):
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    wire = await meet_agent(reader, writer, self._secret)
                    wire.send(self._opening)
                    await self._await_opened(wire)
                except BaseException:
                    await hang_up(writer)
                    raise
        except TimeoutError as error:
            raise OSError(f"silent for {self._config.connect_s:g} s") from error
        self._wire, self._fault = wire, ""
        self._is_there.set()
        return wire

    async def _await_opened(self, wire: Wire[AnyReport]) -> None:
        while not isinstance(report := await wire.recv(self._config.connect_s), Opened):
            if isinstance(report, Refused):
                raise ConfigError(report.error)

    async def _keep(self, first: Wire[AnyReport]) -> None:
        wire: Wire[AnyReport] | None = first
        try:
            while True:
                if wire is not None:
                    await self._listen(wire)
                await asyncio.sleep(self._config.recall_s)
                wire = await self._recall()
        finally:
            if self._wire is not None:
                await self._lose("the deployment ends")

    async def _recall(self) -> Wire[AnyReport] | None:
        try:
            wire = await self._call()
        except (OSError, HeadraceError) as error:
            fault = _reason(error) if isinstance(error, OSError) else str(error)
            if fault != self._fault:
                _log.warning("%s is not there: %s", self, fault)
            self._fault = fault
            return None
        _log.warning("%s is back", self)
        return wire

    async def _listen(self, wire: Wire[AnyReport]) -> None:
        beats = asyncio.create_task(self._beat(wire))
        try:
            while True:
                self._take(await wire.recv(self._config.silent_s))
        except (ConnectionError, ProtocolError) as error:
            _log.warning("%s is lost: %s", self, error)
            await self._lose(str(error))
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _lose(self, reason: str) -> None:
        self._is_there.clear()
        wire, self._wire, self._fault = self._wire, None, reason
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.on_lost(f"{self}: {reason}")
        if wire is not None:
            await wire.close()

    def _take(self, report: AnyReport) -> None:
        number = getattr(report, "number", 0)
        process = self._processes.get(number)
        if process is None:
            return
        match report:
            case Line():
                self._on_line(process.spec.name, report.text)
            case Spawned():
                process.on_spawned(report.pid)
            case NotSpawned():
                del self._processes[number]
                process.on_not_spawned(report.error)
            case Exited():
                del self._processes[number]
                process.on_exited(report.exit_code, report.last_lines)

    async def _beat(self, wire: Wire[AnyReport]) -> None:
        while True:
            wire.send(Beat())
            await asyncio.sleep(self._config.beat_s)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
