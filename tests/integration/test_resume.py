"""A rank is killed amid streams, and no client can tell: real processes, a real model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from headrace.cli.server import RunningServer, running_server
from headrace.cli.source import resolve_model
from headrace.core.launch import EngineConfig
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig
from tests.support.metrics_page import MetricsPage

SPLIT = {"prefill": ReplicaConfig(tp=2), "decode": ReplicaConfig(dp=2)}
# Re-forming takes as long as starting a rank; a bounded wait is generous.
SERVING = ServingConfig(port=0, deadline_s=120.0, is_metrics_open=True)
PROMPT = "Once upon a time there was a little"
SAMPLED: dict[str, Any] = {
    "temperature": 0.9,
    "seed": 5,
    "max_tokens": 120,
    "ignore_eos": True,
    "logprobs": 2,
}
STREAMS: list[dict[str, Any]] = [
    SAMPLED,
    {"temperature": 0.0, "max_tokens": 120, "frequency_penalty": 0.5, "ignore_eos": True},
    SAMPLED | {"n": 2, "seed": 6, "presence_penalty": 0.5, "stop": ["never said"]},
]


@asynccontextmanager
async def served(**replicas: ReplicaConfig) -> AsyncIterator[RunningServer]:
    """Serve the embedded model; fails if the deployment fails."""
    engine = EngineConfig(kv_cache_mib=8, threads=1)
    config = DeploymentConfig(serving=SERVING, engine=engine, **replicas)
    async with running_server(config, resolve_model("tiny")) as server:
        yield server


class Reader:
    """Reads one stream and lets a test act after so many tokens.

    Attributes:
        num_tokens: Tokens that came.
        told: Everything that a client reads of the choices, event by event.
        usage: What the last event says.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.told: list[Any] = []
        self.usage: dict[str, Any] = {}
        self._grew = asyncio.Event()

    async def read(self, server: RunningServer, **fields: Any) -> None:
        """Read one answer to its end."""
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        body = body_of(server, return_token_ids=True, **usage, **fields)
        async with (
            client_of(server) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        for choice in event["choices"]:
            self.num_tokens += len(choice.get("token_ids", ()))
            self.told.append(choice)
        self.usage = event["usage"] or self.usage
        self._grew.set()

    async def until(self, num_tokens: int) -> None:
        """Wait until so many tokens have come."""
        while self.num_tokens < num_tokens:
            self._grew.clear()
            await self._grew.wait()


def client_of(server: RunningServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=180.0, trust_env=False)


def body_of(server: RunningServer, **fields: Any) -> dict[str, Any]:
    return {"model": server.model_name, "prompt": PROMPT, **fields}


async def read_whole(server: RunningServer, **fields: Any) -> Reader:
    reader = Reader()
    await reader.read(server, **fields)
    return reader


async def read_past_a_kill(
    server: RunningServer, readers: list[Reader], name: str, *, num_tokens: int
) -> None:
    """Read all ``STREAMS`` at once; when each has so many tokens, a rank is killed."""
    async with asyncio.timeout(180), asyncio.TaskGroup() as reading:
        for reader, fields in zip(readers, STREAMS, strict=True):
            reading.create_task(reader.read(server, **fields))
        await until_running(server, num_calls=len(STREAMS))
        for reader in readers:
            await reader.until(num_tokens)
        kill(server, name)


async def read_metrics(server: RunningServer) -> MetricsPage:
    async with client_of(server) as client:
        return MetricsPage((await client.get("/metrics")).text)


async def until_running(server: RunningServer, *, num_calls: int = 1) -> None:
    """Wait until so many requests have been sent to their ranks."""
    while (await read_metrics(server)).total("requests_in_flight") < num_calls:
        await asyncio.sleep(0.01)


async def until_ready(server: RunningServer, *, status: int = 200) -> httpx.Response:
    """Wait until ``/ready`` is as asked for, and return what it says."""
    async with asyncio.timeout(120), client_of(server) as client:
        while (answer := await client.get("/ready")).status_code != status:
            await asyncio.sleep(0.01)
        return answer


def kill(server: RunningServer, name: str) -> None:
    os.kill(server.cluster.pids[name], signal.SIGKILL)


def by_choice(reader: Reader) -> dict[int, list[Any]]:
    """Return what came, choice by choice: between choices the order is free."""
    told: dict[int, list[Any]] = {}
    for each in reader.told:
        told.setdefault(each["index"], []).append(each)
    return told


@pytest.mark.parametrize(
    "victims",
    [
        ("decode0.0", "decode0.1"),
        pytest.param(("decode0.1", "decode0.0"), marks=pytest.mark.slow),
    ],
)
async def test_streams_go_on_as_if_no_rank_had_died(victims: tuple[str, str]) -> None:
    async with served(**SPLIT) as server:
        undisturbed = [await read_whole(server, **fields) for fields in STREAMS]
        for victim, num_tokens in zip(victims, (0, 10), strict=True):
            disturbed = [Reader() for _ in STREAMS]
            # Side by side, so that both ranks of the replica have work to lose.
            await read_past_a_kill(server, disturbed, victim, num_tokens=num_tokens)
            for one, other in zip(disturbed, undisturbed, strict=True):
                assert by_choice(one) == by_choice(other)
                assert one.usage["completion_tokens"] == other.usage["completion_tokens"]
            await until_ready(server)
        assert (await read_metrics(server)).total("retries_total") == 2 * len(STREAMS)


async def test_a_mono_replica_that_re_forms_takes_its_streams_up_again() -> None:
    async with served(mono=ReplicaConfig()) as server:
        undisturbed = await read_whole(server, **SAMPLED)
        reader = Reader()
        async with asyncio.timeout(180), asyncio.TaskGroup() as reading:
            reading.create_task(reader.read(server, **SAMPLED))
            await reader.until(5)
            kill(server, "mono0.0")
            red = await until_ready(server, status=503)
            async with client_of(server) as client:
                refused = await client.post("/v1/completions", json=body_of(server))
        for answer in (red, refused):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert "mono0 re-forms without rank 0" in answer.json()["error"]["message"]
        assert reader.told == undisturbed.told


async def test_a_request_outlives_two_deaths_and_the_third_is_named() -> None:
    async with served(mono=ReplicaConfig()) as server, client_of(server) as client:
        body = body_of(server, max_tokens=1900, ignore_eos=True)
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        async with asyncio.timeout(180):
            await until_running(server)
            for _ in range(2):
                kill(server, "mono0.0")
                await until_ready(server, status=503)
                await until_ready(server)
            kill(server, "mono0.0")
            refused = await asking
        assert refused.status_code == 503
        message = refused.json()["error"]["message"]
        assert "mono0.0 died; the request was begun 3 times, which is the limit" in message
