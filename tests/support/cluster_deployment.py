"""Deployments of stub ranks, and what is left of them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from headrace.cluster.events import Event, Hooks
from headrace.cluster.local import LocalSupervisor, SupervisorConfig
from headrace.cluster.rundir import RunDir, open_run_dir
from headrace.core.codec import Codec
from headrace.core.launch import LaunchSpec
from headrace.core.messages import AnyMessage, Message
from headrace.core.sharding import Role, Sharding
from tests.support.cluster_stub import FIRST_GENERATION, stub_command

KEY = bytes(range(32))
SEGMENTS = Path("/dev/shm")


class StubControl:
    """The least control socket that a supervisor can live with."""

    def __init__(self, address: str) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.forgotten: list[str] = []
        self._codec = Codec(KEY)
        self._context = zmq.asyncio.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.bind(address)
        self._outboxes: dict[str, Any] = {}

    def send(self, address: str, message: Message) -> bool:
        if address not in self._outboxes:
            self._outboxes[address] = zmq.Context.shadow(self._context).socket(zmq.PUSH)
            self._outboxes[address].connect(address)
        self.sent.append((address, message))
        self._outboxes[address].send(self._codec.encode(message), zmq.NOBLOCK)
        return True

    def forget(self, address: str) -> None:
        self.forgotten.append(address)
        outbox = self._outboxes.pop(address, None)
        if outbox is not None:
            outbox.close(linger=0)

    async def recv(self) -> AnyMessage:
        return self._codec.decode(await self._inbox.recv())

    def close(self) -> None:
        for outbox in self._outboxes.values():
            outbox.close(linger=0)
        self._context.destroy(linger=0)


@dataclass
class Heard:
    """Everything that a supervisor's hooks were told."""

    events: list[Event] = field(default_factory=list)
    messages: list[AnyMessage] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    has_message: asyncio.Event = field(default_factory=asyncio.Event)

    def hooks(self) -> Hooks:
        def on_message(message: AnyMessage) -> None:
            self.messages.append(message)
            self.has_message.set()

        return Hooks(
            on_event=self.events.append,
            on_message=on_message,
            on_line=lambda name, line: self.lines.append((name, line)),
        )

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Deployment:
    run_dir: RunDir
    control: StubControl
    heard: Heard
    supervisor: LocalSupervisor

    def left_behind(self) -> list[str]:
        """Names of the folder and the segments that still exist."""
        folder = [str(self.run_dir.path)] if self.run_dir.path.exists() else []
        return folder + [path.name for path in SEGMENTS.glob(self.run_dir.deployment_id + "*")]


def specs_of(run_dir: RunDir, *, prefill: str, decode: str) -> list[LaunchSpec]:
    """Two ranks of either role, with the behaviours of ``cluster_stub``."""
    roles = ((Role.PREFILL, prefill, Sharding(tp=2)), (Role.DECODE, decode, Sharding(dp=2)))
    return [
        LaunchSpec(
            deployment_id=run_dir.deployment_id,
            run_dir=str(run_dir.path),
            key=KEY.hex(),
            model=f"stub:{behaviour}",
            replica=f"{role}0",
            role=role,
            sharding=sharding,
            rank=rank,
            generation=FIRST_GENERATION,
            ranks_on_host=4,
            supervisor=run_dir.address("supervisor"),
        )
        for role, behaviour, sharding in roles
        for rank in range(2)
    ]


@asynccontextmanager
async def deployment(
    base: Path, *, prefill: str = "obey", decode: str = "obey", **bounds: Any
) -> AsyncIterator[Deployment]:
    """Yield a deployment that is not started yet, and stop it in the end."""
    run_dir = open_run_dir(base)
    control = StubControl(run_dir.address("supervisor"))
    heard = Heard()
    config = SupervisorConfig(**{"command": stub_command(), "start_timeout_s": 60.0, **bounds})
    supervisor = LocalSupervisor(
        specs_of(run_dir, prefill=prefill, decode=decode),
        run_dir=run_dir,
        control=control,
        hooks=heard.hooks(),
        config=config,
    )
    try:
        yield Deployment(run_dir, control, heard, supervisor)
    finally:
        await supervisor.stop()
        control.close()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def serve_until_killed(base: str) -> None:
    """Start stub ranks, print the ids of all processes, and wait for the end."""
    async with deployment(Path(base), decode="deaf") as running:
        await running.supervisor.start()
        pids = [os.getpid(), *running.supervisor.pids.values()]
        sys.stdout.write(" ".join(map(str, pids)) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
