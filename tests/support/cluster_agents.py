"""Agents on loopback addresses, and connections to them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.cluster.agent.agent import Agent, AgentConfig
from headrace.cluster.agent.orders import AnyReport, Beat, Line, Open, Opened
from headrace.cluster.agent.remote_host import RemoteConfig, RemoteHost
from headrace.cluster.agent.session import SessionConfig
from headrace.cluster.agent.wire import Wire, hang_up, meet_agent
from headrace.core.errors import CheckpointError
from headrace.core.launch import LaunchSpec
from headrace.core.sharding import Role, Sharding
from tests.support.cluster_stub import stub_command

SECRET = bytes(range(32))
PATIENCE_S = 60.0
OPEN = Open(version=__version__, deployment_id="headrace-test", nonce=bytes(32))


@dataclass
class RunningAgent:
    agent: Agent
    base: Path
    port: int

    def run_dirs(self) -> list[Path]:
        return list(self.base.glob("headrace-*"))


def find_model(model: str) -> str:
    """What this host opens: everything but what is said to be absent."""
    if "absent" in model:
        raise CheckpointError(f"{model}: no such folder")
    return model.upper()


@asynccontextmanager
async def running_agent(
    base: Path,
    *,
    port: int = 0,
    command: tuple[str, ...] | None = None,
    config: AgentConfig | None = None,
    **bounds: Any,
) -> AsyncIterator[RunningAgent]:
    session = SessionConfig(
        command=command or stub_command(), find_model=find_model, base=base, **bounds
    )
    agent = Agent(SECRET, session=session, config=config)
    try:
        yield RunningAgent(agent, base, await agent.open("127.0.0.2", port))
    finally:
        await agent.close()


@asynccontextmanager
async def connected(port: int, *, secret: bytes = SECRET) -> AsyncIterator[Wire[AnyReport]]:
    """A supervisor's connection that has shaken hands and said nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.2", port)
    try:
        wire = await meet_agent(reader, writer, secret)
        yield wire
    finally:
        await hang_up(writer)


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[Wire[AnyReport]]:
    """A connection on which a deployment is open."""
    async with connected(port) as wire:
        wire.send(OPEN)
        await report(wire, Opened)
        yield wire


async def report(wire: Wire[AnyReport], kind: type) -> Any:
    """Return the next report of a kind; signs of life and lines may come before it."""
    while not isinstance(found := await wire.recv(PATIENCE_S), kind):
        assert isinstance(found, Beat | Line), found
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def remote_host(port: int, *, secret: bytes = SECRET, **bounds: Any) -> RemoteHost:
    return RemoteHost(
        "b",
        ("127.0.0.2", port),
        secret=secret,
        opening=OPEN,
        on_line=lambda *_: None,
        config=RemoteConfig(**{"recall_s": 0.02, **bounds}),
    )


def rank_spec(behaviour: str = "hang", *, rank: int = 0, generation: int = 1) -> LaunchSpec:
    """A rank that reports to nobody; see ``cluster_stub`` for behaviours."""
    return LaunchSpec(
        deployment_id="headrace-elsewhere",
        run_dir="",
        key="",
        model=f"stub:{behaviour}",
        replica="prefill0",
        role=Role.PREFILL,
        sharding=Sharding(tp=2),
        rank=rank,
        generation=generation,
        ranks_on_host=2,
        supervisor="ipc:///nowhere/supervisor.ctl",
    )
