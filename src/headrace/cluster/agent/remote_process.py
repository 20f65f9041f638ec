"""A rank on another host, handled like a process of this one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any, Protocol

from headrace.cluster.agent.orders import Signal
from headrace.cluster.events import RankExited
from headrace.core.launch import LaunchSpec


class Host(Protocol):
    """The part of a ``RemoteHost`` that a process needs."""

    async def spawn(self, process: RemoteProcess) -> None:
        """Order a rank's start, once the host is there; ``OSError`` if it does not come back."""
        ...

    def signal(self, order: Signal) -> None:
        """Send an order; nothing while the host is lost."""
        ...


class RemoteProcess:
    """A rank's process on another host; a ``RankHandle``.

    Args:
        spec: What to run.
        host: Where.
        number: Its name to the agent.
    """

    def __init__(self, spec: LaunchSpec, *, host: Host, number: int) -> None:
        self.spec = spec
        self.number = number
        self._host = host
        self._pid = 0
        self._is_ordered = False
        self._spawned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[RankExited] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """See ``RankHandle``."""
        return self._is_ordered and not self._ended.done()

    @property
    def pid(self) -> int:
        """See ``RankHandle``."""
        return self._pid

    async def spawn(self) -> None:
        """See ``RankHandle``; waits for a host that is away, and returns when it is told to end."""
        ordering = asyncio.ensure_future(self._order())
        try:
            first: set[asyncio.Future[Any]] = {ordering, self._ended}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if ordering.done():
                ordering.result()
        finally:
            ordering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await ordering

    async def wait(self) -> RankExited:
        """See ``RankHandle``."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """See ``RankHandle``; one that waits for its host waits no longer."""
        if self._ended.done():
            return
        if self._is_ordered:
            self._host.signal(Signal(number=self.number, signal=int(number)))
        elif number in (signal.SIGTERM, signal.SIGKILL):
            self.on_exited(-int(number), ())

    def on_spawned(self, pid: int) -> None:
        """The agent started it."""
        self._pid = pid
        if not self._spawned.done():
            self._spawned.set_result(None)

    def on_not_spawned(self, error: str) -> None:
        """The agent could not start it."""
        if not self._spawned.done():
            self._spawned.set_exception(OSError(error))

    def on_exited(self, exit_code: int, last_lines: tuple[str, ...]) -> None:
        """The agent reaped it, or it was never started."""
        self._end(
            RankExited(name=self.spec.name, exit_code=exit_code, last_lines=tuple(last_lines))
        )

    def on_lost(self, reason: str) -> None:
        """Its host is lost, and it with it."""
        self._end(RankExited(name=self.spec.name, exit_code=0, last_lines=(), lost=reason))

    def _end(self, ended: RankExited) -> None:
        if not self._ended.done():
            self._ended.set_result(ended)

    async def _order(self) -> None:
        await self._host.spawn(self)
        self._is_ordered = True
        await self._spawned
