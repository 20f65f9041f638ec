"""How much of the time to first token a transfer adds that prefill did not hide.

A real deployment of the embedded model, prefill tp=2 and decode dp=2, one long prompt after the
other, one token asked of each. The ledger says what compute did not hide.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from headrace.bench.rows import Row, make_row
from headrace.cluster.events import Hooks
from headrace.cluster.local import LocalSupervisor
from headrace.cluster.rundir import open_run_dir
from headrace.core.codec import Codec
from headrace.core.errors import TransferError
from headrace.core.launch import EngineConfig
from headrace.core.messages import AnyMessage, Output, Outputs, ReplicaInfo, Submit, Topology
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Role
from headrace.deployment import DeploymentConfig, ReplicaConfig, launch_specs
from headrace.models.embedded import embedded_folder
from headrace.transfer.control import AsyncControlSocket

PROMPT_TOKENS = 2048
REPEATS = 50
PATIENCE_S = 120.0


class Asked:
    """A running deployment that is asked one prompt at a time."""

    def __init__(self, control: AsyncControlSocket) -> None:
        self._control = control
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._count = 0

    def take(self, message: AnyMessage) -> None:
        """Take what a rank sent."""
        if isinstance(message, Outputs):
            for output in message.outputs:
                self._outputs.put_nowait(output)

    async def ask(self, topology: Topology, prompt_ids: list[int]) -> tuple[float, float]:
        """Return time to first token, and the part of it that the transfer added [s].

        Raises:
            TransferError: The request failed, or computed its prompt where it decodes.
        """
        self._count += 1
        decode, prefill = (_replica(topology, role) for role in (Role.DECODE, Role.PREFILL))
        begin_s = perf_counter()
        self._control.send(
            decode.ranks[self._count % len(decode.ranks)].address,
            Submit(
                request_id=f"bench-{self._count}",
                reply_to=self._control.address,
                prompt_ids=prompt_ids,
                params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
                prefill_replica=prefill.name,
                deadline_s=PATIENCE_S,
            ),
        )
        output = await asyncio.wait_for(self._outputs.get(), PATIENCE_S)
        ttft_s = perf_counter() - begin_s
        if output.ledger is None or output.ledger.transferred_tokens != len(prompt_ids) - 1:
            name = f"request bench-{self._count}"
            raise TransferError(f"{name} was not prefilled elsewhere: {output}")
        return ttft_s, output.ledger.transfer_s


async def measure_exposed(transport: str, *, repeats: int = REPEATS) -> list[tuple[float, float]]:
    """Return (time to first token, exposed transfer) of so many prompts [s]."""
    rng = random.Random(1)
    async with _running(transport) as (asked, topology):
        times = []
        for _ in range(repeats + 2):
            prompt_ids = [rng.randrange(256) for _ in range(PROMPT_TOKENS)]
            times.append(await asked.ask(topology, prompt_ids))
    return times[2:]


def describe_exposed(transport: str, times: list[tuple[float, float]]) -> Row:
    """Return the row of a measurement: ``value`` is the exposed share of time to first token."""
    shares = [exposed_s / ttft_s for ttft_s, exposed_s in times]
    exposed_us = sorted(exposed_s * 1e6 for _, exposed_s in times)
    return make_row(
        "transfer",
        f"{transport}/exposed",
        p50_us=round(statistics.median(exposed_us), 1),
        p99_us=round(exposed_us[-1], 1),
        value=round(statistics.median(shares), 4),
        unit="of TTFT",
        ttft_p50_us=round(statistics.median(ttft_s for ttft_s, _ in times) * 1e6, 1),
        prompt_tokens=PROMPT_TOKENS,
        repeats=len(times),
    )


@asynccontextmanager
async def _running(transport: str) -> AsyncIterator[tuple[Asked, Topology]]:
    config = DeploymentConfig(
        transport=transport,
        prefill=ReplicaConfig(tp=2),
        decode=ReplicaConfig(dp=2),
        engine=EngineConfig(prefix_cache=False, kv_cache_mib=64),
    )
    run_dir = open_run_dir()
    key = bytes(range(32))
    control = AsyncControlSocket(run_dir.address("edge"), Codec(key))
    control.open()
    asked = Asked(control)
    supervisor = LocalSupervisor(
        launch_specs(
            config,
            deployment_id=run_dir.deployment_id,
            run_dir=str(run_dir.path),
            key=key.hex(),
            supervisor=control.address,
            model=str(embedded_folder()),
            is_moe=True,
        ),
        run_dir=run_dir,
        control=control,
        hooks=Hooks(on_message=asked.take),
    )
    try:
        yield asked, await supervisor.start()
    finally:
        await supervisor.stop()
        control.close()
        run_dir.remove()


def _replica(topology: Topology, role: Role) -> ReplicaInfo:
    return next(one for one in topology.replicas if one.role is role)
