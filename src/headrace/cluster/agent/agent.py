"""The agent of a host: starts ranks there for supervisors on other hosts that hold its key."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from headrace.cluster.agent.session import AgentSession, SessionConfig
from headrace.cluster.agent.wire import hang_up, meet_supervisor
from headrace.core.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Bounds on strangers.

    Attributes:
        handshake_s: How long whoever connects may take to prove the key [s].
        max_strangers: Connections at most that have not proved it yet.
    """

    handshake_s: float = 5.0
    max_strangers: int = 16


class Agent:
    """Listens for supervisors; each connection is one deployment.

    Args:
        secret: The shared secret.
        session: What each deployment gets.
        config: Bounds.
    """

    def __init__(
        self, secret: bytes, *, session: SessionConfig, config: AgentConfig | None = None
    ) -> None:
        self._secret = secret
        self._session = session
        self._config = config or AgentConfig()
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], AgentSession | None] = {}
        self._num_strangers = 0

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port, which is a free one where 0 was asked for.

        Raises:
            ConfigError: The address is taken or not one of this host.
        """
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; give an address of "
                f"this host and a free port"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more and end every deployment's ranks here. Idempotent."""
        if self._server is not None:
            self._server.close()
        for task, session in self._tasks.items():
            if session is None or not session.is_ending:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._num_strangers >= self._config.max_strangers:
            _log.warning("%s is not heard: too many connections without a proof", _peer(writer))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        # Also of one that was cancelled before it began.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        self._num_strangers += 1
        try:
            async with asyncio.timeout(self._config.handshake_s):
                wire = await meet_supervisor(reader, writer, self._secret)
        except (ConfigError, ConnectionError, TimeoutError) as error:
            _log.warning("%s is refused: %s", peer, error or "no proof of the key in time")
            await hang_up(writer)
            return
        finally:
            self._num_strangers -= 1
        session = AgentSession(wire, secret=self._secret, config=self._session)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = session
        await session.run()


def _peer(writer: asyncio.StreamWriter) -> str:
    address: Any = writer.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if address else "a peer that has left"
