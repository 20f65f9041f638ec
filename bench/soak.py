"""A deployment under load while things go wrong: every answer right, or an error that says why.

Run from the repository's root as ``python -m bench.soak``. First one ``mono`` rank answers a
fixed set of requests; then a split deployment answers them again and again while sessions lose
writes, all writes are late, and ranks are killed. Afterwards the ranks must be idle with all their
blocks, and hold no more descriptors, threads, segments and files than before.

Exit code 0 when all of that holds. Standard output: one JSON line per row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.soak_census import Census, find_work, take_census
from bench.soak_client import Case, SoakClient, Verdict, make_cases
from headrace.cli.server import RunningServer, running_server
from headrace.cli.source import EMBEDDED, resolve_model
from headrace.cluster.blows import strike
from headrace.core.chaos import parse_chaos
from headrace.core.launch import EngineConfig
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig

# Sessions that wait for a lost write end after this long; the default of 30 s would show fewer.
SESSION_TIMEOUT_S = 2.0
# Bounds on waiting: sessions end, ranks that are lost come back, connections close.
IDLE_S = 20.0
LOOK_S = 0.5
# Clients that hang up: long enough to be under way, too short to be over.
LEAVING_ROUNDS = 3
LEAVE_S = 0.3
VARIANTS = 100

OUTCOMES = ("right", "error", "wrong", "late", "nameless")
# What shows that there were faults, and what was done about them.
COUNTERS = (
    "headrace_rank_transfer_chaos_lost_writes_total",
    "headrace_rank_transfer_chaos_held_writes_total",
    "headrace_rank_sessions_failed_total",
    "headrace_rank_sessions_opened_total",
    "headrace_rank_local_prefills_total",
    "headrace_retries_total",
    "headrace_sequence_retries_total",
    "headrace_rank_pool_blocks_quarantined_total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakConfig:
    """What is asked of whom for how long.

    Attributes:
        seconds: How long requests are sent [s].
        concurrency: Requests in flight.
        chaos: What goes wrong with writes, see ``core.chaos``.
        blows: What befalls ranks, spelled alike; times count from the beginning of the load.
        num_cases: Size of the fixed set of requests.
        deadline_s: Longest time that a request may take to its end [s].
        least_right: Share of requests that must end with the right tokens.
        seed: Of the set.
    """

    seconds: float = 300.0
    concurrency: int = 16
    chaos: str = "lose=0.03,delay=20ms"
    blows: str = "kill=prefill@120s"
    num_cases: int = 39
    deadline_s: float = 60.0
    least_right: float = 0.99
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class SoakReport:
    """What came of it.

    Attributes:
        verdicts: One for each request that was sent.
        took_s: How long they took together [s].
        left: What the ranks did not give back, in words; empty when all is as it was.
        counters: Sums over ranks of what counts faults and retries.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    took_s: float = 0.0
    left: list[str] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    def outcomes(self) -> Counter[str]:
        """Return how many requests ended how."""
        return Counter(one.outcome for one in self.verdicts)

    def faults(self, config: SoakConfig) -> list[str]:
        """Return what did not hold, in words."""
        counts, total = self.outcomes(), len(self.verdicts)
        faults = list(self.left)
        if counts["right"] < config.least_right * total or not total:
            faults.append(f"{counts['right']} of {total} requests ended with the right tokens")
        for outcome in ("wrong", "late", "nameless"):
            bad = [one for one in self.verdicts if one.outcome == outcome]
            if bad:
                reasons = sorted({one.reason for one in bad})[:3]
                faults.append(f"{len(bad)} {outcome}, case {bad[0].case}: {'; '.join(reasons)}")
        return faults


def split_config(chaos: str) -> DeploymentConfig:
    """Return the deployment that is put under load."""
    return DeploymentConfig(
        model=EMBEDDED,
        prefill=ReplicaConfig(tp=2, ep=2),
        decode=ReplicaConfig(dp=2, ep=2),
        engine=EngineConfig(kv_cache_mib=16, session_timeout_s=SESSION_TIMEOUT_S),
        serving=ServingConfig(port=0, is_metrics_open=True),
        chaos=chaos,
    )


async def soak(config: SoakConfig) -> SoakReport:
    """Run the whole of it: reference, load, calm."""
    cases = make_cases(config.num_cases, seed=config.seed)
    want = await _reference(cases, config)
    report = SoakReport()
    async with running_server(split_config(config.chaos), resolve_model(EMBEDDED)) as server:
        await server.cluster.guard(_soak(server, cases, want, config=config, report=report))
    return report


async def _reference(cases: Sequence[Case], config: SoakConfig) -> list[list[int]]:
    mono = DeploymentConfig(
        model=EMBEDDED,
        mono=ReplicaConfig(),
        engine=EngineConfig(kv_cache_mib=32),
        serving=ServingConfig(port=0),
    )
    async with running_server(mono, resolve_model(EMBEDDED)) as server, _session(server) as session:
        client = SoakClient(session, model=server.model_name, deadline_s=config.deadline_s)
        asked = [client.tokens(case, is_stream=False) for case in cases]
        return await server.cluster.guard(_all(asked))


async def _all(asked: Sequence[Coroutine[Any, Any, list[int]]]) -> list[list[int]]:
    return list(await asyncio.gather(*asked))


async def _soak(
    server: RunningServer,
    cases: Sequence[Case],
    want: Sequence[Sequence[int]],
    *,
    config: SoakConfig,
    report: SoakReport,
) -> None:
    """Send every case once and count what is held then; load and strike; compare."""

    async def send(requests: Iterator[tuple[Case, bool]]) -> None:
        async with _session(server) as session:
            client = SoakClient(session, model=server.model_name, deadline_s=config.deadline_s)
            for case, is_stream in requests:
                verdict = await client.judge(case, want[case.number], is_stream=is_stream)
                report.verdicts.append(verdict)

    async def send_all(requests: Iterator[tuple[Case, bool]]) -> None:
        await asyncio.gather(*(send(requests) for _ in range(config.concurrency)))

    await send_all((case, False) for case in cases)
    await _leave_early(server, cases, config)
    report.left += await _await_idle(server)
    before, began_s = _census(server), time.monotonic()
    striking = asyncio.create_task(_strike(server, config.blows))

    def is_over() -> bool:
        is_whole = all(replica.is_up for replica in server.cluster.topology.replicas)
        return time.monotonic() >= began_s + config.seconds and striking.done() and is_whole

    await send_all(_until(is_over, cases))
    await striking
    report.took_s = time.monotonic() - began_s
    report.left += await _await_idle(server)
    report.left += await _await_census(server, before)
    report.counters = _sum_counters(await _metrics(server))


async def _leave_early(server: RunningServer, cases: Sequence[Case], config: SoakConfig) -> None:
    """Have clients hang up, so that every rank has spoken to every other before it is counted.

    Each prefill rank says to each decode rank that a given up session is quiet; what connects
    only then would look like a leak.
    """
    longest = max(cases, key=lambda case: len(case.body["prompt"]))
    for number in range(LEAVING_ROUNDS):
        async with _session(server) as session:
            client = SoakClient(session, model=server.model_name, deadline_s=config.deadline_s)
            # Not from any prefix cache, or nothing would have to be brought.
            prompts = [
                [(number * config.concurrency + client_number) % VARIANTS, *longest.body["prompt"]]
                for client_number in range(config.concurrency)
            ]
            leaving = [
                client.leave(Case(0, {**longest.body, "prompt": prompt}), after_s=LEAVE_S)
                for prompt in prompts
            ]
            await asyncio.gather(*leaving)


async def _strike(server: RunningServer, blows: str) -> None:
    await strike(
        parse_chaos(blows),
        alive=lambda: server.cluster.pids,
        send_signal=lambda rank, number: os.kill(server.cluster.pids[rank], number),
    )


def _until(is_over: Callable[[], bool], cases: Sequence[Case]) -> Iterator[tuple[Case, bool]]:
    """Yield cases over and over, streamed in every other round."""
    is_stream = True
    while True:
        for case in cases:
            if is_over():
                return
            yield case, is_stream
        is_stream = not is_stream


@asynccontextmanager
async def _session(server: RunningServer) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        yield session


async def _metrics(server: RunningServer) -> str:
    async with _session(server) as session, session.get("/metrics") as response:
        return await response.text()


async def _await_idle(server: RunningServer) -> list[str]:
    """Wait until every rank is idle with all blocks; return what is not after a while."""
    work: list[str] = []
    deadline_s = time.monotonic() + IDLE_S
    while time.monotonic() < deadline_s:
        work = find_work(await _metrics(server))
        if not work:
            return []
        await asyncio.sleep(LOOK_S)
    return work


async def _await_census(server: RunningServer, before: Census) -> list[str]:
    """Wait until nothing more is held than before; return what is after a while."""
    more: list[str] = []
    deadline_s = time.monotonic() + IDLE_S
    while time.monotonic() < deadline_s:
        more = _census(server).more_than(before)
        if not more:
            return []
        await asyncio.sleep(LOOK_S)
    return more


def _census(server: RunningServer) -> Census:
    run_dir = Path(server.cluster.address.removeprefix("ipc://")).parent
    return take_census({**server.cluster.pids, "edge": os.getpid()}, run_dir=run_dir)


def _sum_counters(metrics: str) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in COUNTERS:
                sums[sample.name] += sample.value
    return dict(sums)


def rows(config: SoakConfig, report: SoakReport) -> list[dict[str, Any]]:
    """Return the report as rows of a benchmark."""
    took = sorted(one.took_s for one in report.verdicts)
    values: dict[str, tuple[float, str]] = {
        "requests": (len(took), "requests"),
        **{name: (report.outcomes()[name], "requests") for name in OUTCOMES},
        "right share": (report.outcomes()["right"] / max(1, len(took)), "share"),
        "request p50": (took[len(took) // 2] if took else 0.0, "s"),
        "request max": (took[-1] if took else 0.0, "s"),
        "left": (len(report.left), "findings"),
        **{name: (value, "count") for name, value in sorted(report.counters.items())},
    }
    same = {
        "bench": "soak",
        "variant": "headrace",
        "chaos": ",".join(filter(None, [config.chaos, config.blows])),
        "concurrency": config.concurrency,
        "seconds": round(report.took_s, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    return [
        {**same, "case": case, "value": value, "unit": unit}
        for case, (value, unit) in values.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse flags, soak, print rows and findings; return the exit code."""
    config, path = _parse(arguments)
    report = asyncio.run(soak(config))
    lines = [json.dumps(row) for row in rows(config, report)]
    sys.stdout.write("\n".join(lines) + "\n")
    if path is not None:
        path.write_text("\n".join(lines) + "\n")
    faults = report.faults(config)
    for fault in faults:
        sys.stderr.write(f"soak: {fault}\n")
    return 1 if faults else 0


def _parse(arguments: Sequence[str] | None) -> tuple[SoakConfig, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    standard = SoakConfig()
    for name in ("seconds", "concurrency", "chaos", "blows", "num_cases", "deadline_s", "seed"):
        value = getattr(standard, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), default=value, help=f"default: {value}")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = vars(parser.parse_args(arguments))
    path = given.pop("json")
    return SoakConfig(**given), path


if __name__ == "__main__":
    sys.exit(main())
