"""A deployment behind its HTTP front, as one object in this process's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from opentelemetry.trace import Tracer

from headrace.cli.running import RunningCluster, to_the_end
from headrace.cli.source import ModelSource, served_model
from headrace.cli.traces import exported_traces
from headrace.cluster.events import Event, ignore
from headrace.cluster.local import SupervisorConfig
from headrace.core.clock import SystemClock
from headrace.core.errors import ReplicaError
from headrace.core.messages import AnyMessage
from headrace.deployment import DeploymentConfig
from headrace.serving.openai.app import Front, create_app
from headrace.serving.openai.dispatcher import Dispatcher
from headrace.serving.openai.metrics import ServingMetrics
from headrace.serving.openai.server import HttpServer
from headrace.serving.router.registry import Registry
from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer

# Ranks that are ready beat twice a second; this only ends a start that would never end.
FIRST_BEATS_S = 30.0


class RunningServer:
    """The HTTP front of a running cluster.

    Args:
        cluster: The ranks; its control socket must be open.
        front: What the routes use.
        registry: The router's memory.
    """

    def __init__(self, cluster: RunningCluster, front: Front, registry: Registry) -> None:
        self.cluster = cluster
        self._front = front
        self._registry = registry
        self._http = HttpServer(create_app(front), front.config)
        self._is_ready = asyncio.Event()
        self._end = "the server is stopping"
        for listener in (registry.on_message, front.dispatcher.on_message, self._note_ready):
            cluster.listen(listener)

    @property
    def url(self) -> str:
        """Where clients reach the server."""
        return self._http.url

    @property
    def model_name(self) -> str:
        """Name that clients use for the model."""
        return self._front.model.name

    async def start(self) -> None:
        """Bind the port, start the ranks, and return when every one of them was heard.

        ``/health`` answers from the beginning, ``/ready`` is red until the end.

        Raises:
            ConfigError: The port cannot be had; no rank was started.
            HeadraceError: See ``RunningCluster.start``.
        """
        self._http.open()
        await self._http.start()
        await self.cluster.start()
        await self.cluster.guard(self._wait_ready())

    async def serve(self) -> None:
        """Answer requests until cancelled, or until a rank is lost.

        Raises:
            ReplicaError: Names the rank.
        """
        try:
            await self.cluster.guard(asyncio.Event().wait())
        except ReplicaError as error:
            # Open streams are told the same in `stop`.
            self._end = str(error)
            raise

    async def stop(self) -> None:
        """End open streams, close the port, end the ranks: all within 5 s."""
        self._front.dispatcher.fail_all(self._end)
        # Side by side: each has its own bound, and one after the other they would add up.
        ends = await asyncio.gather(self._http.stop(), self.cluster.stop(), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def _note_ready(self, message: AnyMessage) -> None:
        if not self._is_ready.is_set() and self._registry.readiness().is_ready:
            self._is_ready.set()

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(FIRST_BEATS_S):
                await self._is_ready.wait()
        except TimeoutError as error:
            raise ReplicaError(f"not ready: {self._registry.readiness().reason}") from error


@asynccontextmanager
async def running_server(
    config: DeploymentConfig,
    source: ModelSource,
    *,
    on_event: Callable[[Event], None] = ignore,
    supervision: SupervisorConfig | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve a deployment as long as the context lasts; inside, every rank is ready.

    Raises:
        UserError: A busy port, a sharding, folder or checkpoint that a person can mend.
        ReplicaError: A rank died or was not ready in time.
    """
    with exported_traces(config.serving.otlp_endpoint) as tracer:
        cluster = RunningCluster(config, source, on_event=on_event, supervision=supervision)
        server: RunningServer | None = None
        try:
            cluster.open()
            server = _make_server(config, source, cluster, tracer)
            await server.start()
            yield server
        finally:
            await to_the_end(server.stop() if server is not None else cluster.stop())


def _make_server(
    config: DeploymentConfig, source: ModelSource, cluster: RunningCluster, tracer: Tracer
) -> RunningServer:
    serving, clock, metrics = config.serving, SystemClock(), ServingMetrics()
    registry = Registry(config.router, clock=clock)
    dispatcher = Dispatcher(
        cluster,
        registry,
        metrics=metrics,
        clock=clock,
        max_requests=serving.max_requests,
        max_backlog=serving.max_backlog,
        deadline_s=serving.deadline_s,
        max_retries=serving.max_retries,
    )
    metrics.further.append(cluster.counters)
    template = ChatTemplate.open(source.folder)
    front = Front(
        config=serving,
        model=served_model(source, config),
        tokenizer=Tokenizer.open(source.folder),
        template=template,
        dispatcher=dispatcher,
        fleet=registry,
        metrics=metrics,
        tracer=tracer,
    )
    return RunningServer(cluster, front, registry)
