"""The HTTP server as an object: started and stopped by whoever owns the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from headrace.core.errors import ConfigError
from headrace.serving.openai.config import ServingConfig


class _Uvicorn(uvicorn.Server):
    """Signals belong to the owner of the process: uvicorn leaves them alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one application on one socket, inside the running event loop.

    Order: ``open`` (binds; fails with one clear line), ``start``, then ``stop``.

    Args:
        app: The application.
        config: Host, port and stopping time.
    """

    def __init__(self, app: ASGIApp, config: ServingConfig) -> None:
        self._app = app
        self._config = config
        self._socket: socket.socket | None = None
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound; the real one when the configured one is 0."""
        if self._socket is None:
            return self._config.port
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients reach the server."""
        host = self._config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def open(self) -> None:
        """Bind the socket, before anything expensive is started.

        Raises:
            ConfigError: The address cannot be had (busy port, unknown host, no permission).
        """
        host, port = self._config.host, self._config.port
        try:
            self._socket = _bind(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"cannot listen on {host}:{port}: {reason}; choose another port, or 0 for any"
            ) from error

    async def start(self) -> None:
        """Answer requests from now on. The accept queue exists when this returns."""
        if self._socket is None:
            self.open()
        self._server = _Uvicorn(_settings(self._app, self._config))
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._socket] if self._socket else None)
        self._task = asyncio.create_task(self._run(self._server))

    async def _run(self, server: _Uvicorn) -> None:
        await server.main_loop()
        await server.shutdown(sockets=[self._socket] if self._socket else None)

    async def stop(self) -> None:
        """Close the port, let open answers end for ``shutdown_s`` at most, then cut them.

        Call ``Dispatcher.fail_all`` first, so that open streams end by themselves.
        """
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            # What was cut still has to give back what it holds.
            if cut := list(self._server.server_state.tasks):
                await asyncio.wait(cut)
        if self._socket is not None:
            self._socket.close()
        self._server = self._task = self._socket = None


def _bind(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        # Lets a restarted server take its port from connections in TIME_WAIT, not from a listener.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _settings(app: ASGIApp, config: ServingConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Clients of a long-lived service keep connections; reopening one costs them a round trip.
        timeout_keep_alive=75,
        # Whole seconds, at least one: uvicorn's own unit.
        timeout_graceful_shutdown=max(1, int(config.shutdown_s)),
    )
