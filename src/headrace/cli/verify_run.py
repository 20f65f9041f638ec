"""Runs the requests of ``verify`` through a deployment's real processes and collects the traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.cli.running import RunningCluster, running_cluster
from headrace.cli.source import ModelSource
from headrace.cli.verify_compare import Run
from headrace.cluster.events import Event, ignore
from headrace.cluster.local import SupervisorConfig
from headrace.cluster.replica import ReplicaBounds
from headrace.cluster.restarts import RestartConfig
from headrace.core.errors import ReplicaError
from headrace.core.messages import AnyMessage, Output, Outputs, ReplicaInfo, Submit
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Role
from headrace.deployment import DeploymentConfig, ReplicaConfig

# A large model on a CPU may take minutes for a long prompt; this only ends what would never end.
STALL_S = 600.0

# A rank that dies is a finding here, not something to get over.
NO_RESTARTS = SupervisorConfig(replica=ReplicaBounds(restarts=RestartConfig(max_restarts=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt under one setting.

    Attributes:
        prompt_ids: Prompt tokens.
        params: How its tokens are chosen.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams


def mono_of(config: DeploymentConfig) -> DeploymentConfig:
    """Return one mono rank with the engine settings of a deployment."""
    return msgspec.structs.replace(config, prefill=None, decode=None, mono=ReplicaConfig())


async def run_side(
    config: DeploymentConfig,
    source: ModelSource,
    rounds: Sequence[Sequence[Request]],
    *,
    on_event: Callable[[Event], None] = ignore,
) -> list[Run]:
    """Start a deployment, run requests through it, stop it.

    Args:
        config: The deployment.
        source: Its model.
        rounds: Run one after the other, the requests of each all at once. A round begins on
            another rank than the one before, so that equal prompts meet other prefix caches.
        on_event: Called with every event of a rank's life.

    Returns:
        One run per request, round after round.

    Raises:
        UserError: See ``running_cluster``.
        ReplicaError: A rank was lost, refused a request, or did not go on.
    """
    async with running_cluster(
        config, source, on_event=on_event, supervision=NO_RESTARTS
    ) as cluster:
        return await cluster.guard(
            _run_rounds(cluster, rounds, deadline_s=config.serving.deadline_s)
        )


async def _run_rounds(
    cluster: RunningCluster, rounds: Sequence[Sequence[Request]], *, deadline_s: float
) -> list[Run]:
    collector = Collector()
    cluster.listen(collector.on_message)
    runs: list[Run] = []
    for index, requests in enumerate(rounds):
        submits = make_submits(
            requests,
            replicas=cluster.topology.replicas,
            reply_to=cluster.address,
            first=len(runs),
            shift=index,
        )
        for address, submit in submits:
            submit.deadline_s = deadline_s
            collector.expect(submit.request_id)
            if not cluster.send(address, submit):
                raise ReplicaError(f"{address} takes no request")
        await collector.wait()
        runs += [collector.run_of(submit.request_id) for _, submit in submits]
    return runs


def make_submits(
    requests: Sequence[Request],
    *,
    replicas: Sequence[ReplicaInfo],
    reply_to: str,
    first: int = 0,
    shift: int = 0,
) -> list[tuple[str, Submit]]:
    """Spread requests over all decode (or mono) ranks and all prefill replicas, in turn.

    Args:
        requests: What to ask.
        replicas: The deployment's replicas.
        reply_to: Where outputs go.
        first: Running number of the first request.
        shift: Added to the turn of the decode ranks.

    Returns:
        (control address of the rank, message) per request.
    """
    ranks = [rank for each in replicas if each.role is not Role.PREFILL for rank in each.ranks]
    prefillers = [each.name for each in replicas if each.role is Role.PREFILL] or [""]
    return [
        (
            ranks[(index + shift) % len(ranks)].address,
            Submit(
                request_id=f"verify-{first + index}",
                reply_to=reply_to,
                prompt_ids=list(request.prompt_ids),
                params=request.params,
                prefill_replica=prefillers[index % len(prefillers)],
                ordinal=first + index,
                trace=True,
            ),
        )
        for index, request in enumerate(requests)
    ]


class Collector:
    """Gathers the outputs of requests by id. Used from one event loop."""

    def __init__(self) -> None:
        self._outputs: dict[str, list[Output]] = {}
        self._open: set[str] = set()
        self._changed = asyncio.Event()

    def expect(self, request_id: str) -> None:
        """Wait for a request's end from now on."""
        self._open.add(request_id)
        self._outputs[request_id] = []

    def on_message(self, message: AnyMessage) -> None:
        """Take outputs; other messages are not for us."""
        if not isinstance(message, Outputs):
            return
        for output in message.outputs:
            self._outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                self._open.discard(output.request_id)
        self._changed.set()

    async def wait(self, *, stall_s: float = STALL_S) -> None:
        """Wait until every expected request has ended.

        Raises:
            ReplicaError: Nothing came for ``stall_s`` seconds.
        """
        while self._open:
            self._changed.clear()
            try:
                async with asyncio.timeout(stall_s):
                    await self._changed.wait()
            except TimeoutError as error:
                raise ReplicaError(
                    f"no token for {stall_s:g} s with {len(self._open)} requests unfinished"
                ) from error

    def run_of(self, request_id: str) -> Run:
        """Return an ended request's run and forget it.

        Raises:
            ReplicaError: It ended with an error, or without what a comparison needs.
        """
        outputs = self._outputs.pop(request_id)
        last = outputs[-1]
        if last.error:
            raise ReplicaError(f"{request_id} ended with an error: {last.error}")
        traces = [output.trace for output in outputs if output.trace is not None]
        if last.ledger is None or len(traces) != len(outputs):
            raise ReplicaError(f"{request_id} came without a ledger or a trace of every token")
        return Run(
            token_ids=[token for output in outputs for token in output.token_ids],
            logits=[trace.logits for trace in traces],
            kv_digests=[trace.kv_digests for trace in traces],
            ledger=last.ledger,
        )
