"""Runs the ranks of a deployment under this process's event loop, without HTTP.

``verify`` submits requests to them directly; ``cli/server`` puts the HTTP front on top.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from headrace.cli.joining import join_hosts
from headrace.cli.source import ModelSource
from headrace.cluster.agent.hosts import Hosts
from headrace.cluster.blows import strike
from headrace.cluster.events import Event, Hooks, ignore
from headrace.cluster.local import LocalSupervisor, SupervisorConfig
from headrace.cluster.rundir import RunDir, open_run_dir
from headrace.core.chaos import parse_chaos
from headrace.core.codec import Codec
from headrace.core.errors import ReplicaError
from headrace.core.messages import AnyMessage, Message, Ready, Topology
from headrace.deployment import DeploymentConfig, check_shardings, launch_specs
from headrace.transfer.control import AsyncControlSocket

T = TypeVar("T")
Listener = Callable[[AnyMessage], None]

_log = logging.getLogger(__name__)
_rank_log = logging.getLogger("headrace.rank")


class RunningCluster:
    """The ranks of one deployment and the control socket that they answer to.

    Order: ``open``, ``listen`` as often as needed, ``start``, then ``stop``, which is also right
    after any failure. Used from one event loop.

    Args:
        config: The deployment.
        source: Its model.
        on_event: Called with every event of a rank's life.
        supervision: Bounds on the life of rank processes.
    """

    def __init__(
        self,
        config: DeploymentConfig,
        source: ModelSource,
        *,
        on_event: Callable[[Event], None] = ignore,
        supervision: SupervisorConfig | None = None,
    ) -> None:
        self._config = config
        self._source = source
        self._on_event = on_event
        self._supervision = supervision
        self._listeners: list[Listener] = []
        self._run_dir: RunDir | None = None
        self._control: AsyncControlSocket | None = None
        self._hosts = Hosts()
        self._supervisor: LocalSupervisor | None = None
        self._topology: Topology | None = None
        self._chaos = parse_chaos(config.chaos)
        self._striking: asyncio.Task[None] | None = None

    @property
    def topology(self) -> Topology:
        """The replicas as they are now; known once ``start`` has returned."""
        if self._topology is None:
            raise ReplicaError("the ranks have not been started")
        return self._topology

    @property
    def ready(self) -> list[Ready]:
        """What each rank said of its pool when it was ready, in the order of the topology."""
        return self._open_supervisor().ready

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the living ranks by name."""
        return self._open_supervisor().pids

    @property
    def address(self) -> str:
        """Where ranks send outputs: the ``reply_to`` of a request."""
        return self._open_control().address

    def counters(self) -> dict[str, float]:
        """Return what the edge's control socket counts, by Prometheus name; nothing when closed."""
        counters = self._control.counters() if self._control is not None else {}
        return {name.replace("headrace_", "headrace_edge_"): n for name, n in counters.items()}

    def open(self) -> None:
        """Check the shardings, then make the run folder and the control socket.

        Raises:
            ShardingError: The model cannot be split so; nothing has been made.
            ConfigError: No folder or socket can be had, the hosts cannot be joined, or faults are
                meant for ranks that there are not.
        """
        check_shardings(self._config, self._source.config)
        self._check_chaos()
        self._run_dir = open_run_dir()
        joined = join_hosts(
            self._config,
            self._source,
            deployment_id=self._run_dir.deployment_id,
            on_line=_log_line,
        )
        self._hosts = joined.hosts
        self._control = AsyncControlSocket(
            self._run_dir.address("edge"), Codec(joined.key), host=joined.own_address
        )
        self._control.open()
        self._supervisor = LocalSupervisor(
            launch_specs(
                self._config,
                deployment_id=self._run_dir.deployment_id,
                run_dir=str(self._run_dir.path),
                key=joined.key.hex(),
                supervisor=self._control.address,
                model=self._source.launch,
                is_moe=self._source.is_moe,
                addresses=joined.addresses,
            ),
            run_dir=self._run_dir,
            control=self._control,
            hooks=Hooks(on_event=self._take_event, on_message=self._deliver, on_line=_log_line),
            config=self._supervision,
            hosts=joined.hosts,
        )

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` called with each ``Outputs``, ``Heartbeat``, ``Topology``, ``Ready``.

        It runs on the event loop and must not block.
        """
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start every rank and wait until all are ready and know of each other.

        Raises:
            UserError: A rank refused to start for a reason that a person can mend.
            ReplicaError: A rank died or was not ready in time. Everything is stopped already.
        """
        supervisor = self._open_supervisor()
        await self._hosts.open()
        self._topology = await supervisor.start()
        self._deliver(self._topology)
        for ready in supervisor.ready:
            self._deliver(ready)
        self._striking = asyncio.create_task(
            strike(
                self._chaos,
                alive=lambda: supervisor.pids,
                send_signal=supervisor.send_signal,
            )
        )

    def send(self, address: str, message: Message) -> bool:
        """Queue a message for a rank without waiting; False when the rank takes no more."""
        return self._open_control().send(address, message)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns, or cancel it and raise once a rank is lost.

        Raises:
            HeadraceError: Why the deployment cannot go on, naming the rank.
        """
        task = asyncio.ensure_future(work)
        failure = asyncio.ensure_future(self._open_supervisor().failure())
        try:
            await asyncio.wait({task, failure}, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise failure.result()
            return task.result()
        finally:
            task.cancel()
            failure.cancel()
            await asyncio.gather(task, failure, return_exceptions=True)

    async def stop(self) -> None:
        """End every rank and remove what the deployment left; idempotent, at most 4.5 s."""
        control, self._control = self._control, None
        try:
            if self._striking is not None:
                self._striking.cancel()
                await asyncio.gather(self._striking, return_exceptions=True)
            if self._supervisor is not None and control is not None:
                await self._supervisor.stop()
        finally:
            await self._hosts.close()
            if control is not None:
                control.close()
            if self._run_dir is not None:
                self._run_dir.remove()

    def _check_chaos(self) -> None:
        is_moe = self._source.is_moe
        self._chaos.check_targets(
            [
                f"{role}{index}.{rank}"
                for role, replica in self._config.roles
                for index in range(replica.replicas)
                for rank in range(replica.sharding(is_moe=is_moe).num_ranks)
            ]
        )

    def _take_event(self, event: Event) -> None:
        self._on_event(event)
        if isinstance(event, Ready):
            # Of a rank that came back; at the start nobody listens yet, see `start`.
            self._deliver(event)

    def _deliver(self, message: AnyMessage) -> None:
        # Heartbeats come before the topology; nobody above knows yet whose they are.
        if self._topology is None:
            return
        if isinstance(message, Topology):
            self._topology = message
        for listener in self._listeners:
            listener(message)

    def _open_control(self) -> AsyncControlSocket:
        if self._control is None:
            raise ReplicaError("the control socket is not open")
        return self._control

    def _open_supervisor(self) -> LocalSupervisor:
        if self._supervisor is None:
            raise ReplicaError("the ranks have not been started")
        return self._supervisor


@asynccontextmanager
async def running_cluster(
    config: DeploymentConfig,
    source: ModelSource,
    *,
    on_event: Callable[[Event], None] = ignore,
    supervision: SupervisorConfig | None = None,
) -> AsyncIterator[RunningCluster]:
    """Run a deployment's ranks as long as the context lasts.

    Work that waits for ranks belongs into ``guard``, which ends when a rank is lost.

    Raises:
        UserError: A sharding, folder or checkpoint that a person can mend.
        ReplicaError: A rank died or was not ready in time.
    """
    cluster = RunningCluster(config, source, on_event=on_event, supervision=supervision)
    try:
        cluster.open()
        await cluster.start()
        yield cluster
    finally:
        await to_the_end(cluster.stop())


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish ``work`` through any cancellation, which is then passed on.

    For bounded work that leaves processes behind when it is cut short.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _log_line(rank: str, line: str) -> None:
    level = logging.getLevelNamesMapping().get(line.partition(" ")[0], logging.INFO)
    _rank_log.log(level, "%s: %s", rank, line)
