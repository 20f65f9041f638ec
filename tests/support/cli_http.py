"""A scripted HTTP server for the client's tests: it answers every path with what it was given."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Scripted:
    """What the server says, and what it was asked.

    Attributes:
        status: Status of every answer.
        body: Body of every answer.
        asked: Path, headers and JSON body of each request.
    """

    status: int = 200
    body: bytes = b""
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, dict(request.headers), body))
        return web.Response(status=self.status, body=self.body)


@asynccontextmanager
async def scripted_server(body: bytes = b"", *, status: int = 200) -> AsyncIterator[Scripted]:
    """Serve on a loopback port as long as the context lasts."""
    scripted = Scripted(status=status, body=body)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield scripted
    finally:
        await runner.cleanup()
