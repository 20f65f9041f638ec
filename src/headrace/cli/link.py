"""The way from a conversation to its server: one that runs, or one started for it."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from rich.console import Console

from headrace.cli.chat import Place
from headrace.cli.client import Answer, ChatClient, ChatSettings, chat_client
from headrace.cli.conversation import OnText, Turns
from headrace.cli.loop_thread import LoopThread
from headrace.cli.progress import StartReport
from headrace.cli.server import RunningServer, running_server
from headrace.cli.source import resolve_model
from headrace.deployment import DeploymentConfig, num_ranks


class Link:
    """An open way to a server; made by ``open_link``. Lives as long as its loop.

    Args:
        loop: Runs the client, and the server if it is ours.
        client: Talks to the server.
        settings: What is sent along with every turn.
        life: Ends when the link does, with the reason.
    """

    def __init__(
        self, loop: LoopThread, client: ChatClient, settings: ChatSettings, *, life: Future[None]
    ) -> None:
        self._loop = loop
        self._client = client
        self._settings = settings
        self._life = life

    def ask(self, turns: Turns, on_text: OnText) -> Answer:
        """Send the turns so far and block until the answer is there, showing it as it comes.

        Raises:
            HeadraceError: The server refused, the answer broke off, or our own server ended.
        """
        if self._life.done():
            # Its reason says more than a refused connection would.
            self._life.result()
        return self._loop.run(self._client.stream(turns, self._settings, on_text=on_text))


def open_link(loop: LoopThread, place: Place, name: str, *, fields: dict[str, Any]) -> Link:
    """Connect, after starting the server if it is ours.

    Args:
        loop: Runs all of it; leaving the loop ends all of it.
        place: Where the model is.
        name: Model to ask for; empty takes the one that is served.
        fields: Further fields of every request.

    Raises:
        HeadraceError: Nobody answers, or the deployment did not start.
    """
    connected: Future[ChatClient] = Future()
    life = loop.submit(_live(place, connected))
    life.add_done_callback(lambda ended: _pass_error(ended, connected))
    client = connected.result()
    model = name or loop.run(client.model_name())
    return Link(loop, client, ChatSettings(model=model, fields=fields), life=life)


async def _live(place: Place, connected: Future[ChatClient]) -> None:
    # The server stops before the client closes: what is being streamed then ends with a reason.
    async with AsyncExitStack() as clients, AsyncExitStack() as servers:
        url, api_key, server = place.url, place.api_key, None
        if place.deployment is not None:
            server = await _start(place.deployment, servers)
            url, api_key = server.url, next(iter(place.deployment.serving.api_keys), "")
        client = await clients.enter_async_context(chat_client(url, api_key=api_key))
        connected.set_result(client)
        await (server.serve() if server is not None else asyncio.Event().wait())


async def _start(deployment: DeploymentConfig, stack: AsyncExitStack) -> RunningServer:
    source = resolve_model(deployment.model)
    serving = msgspec.structs.replace(deployment.serving, host="127.0.0.1", port=0)
    config = msgspec.structs.replace(deployment, serving=serving)
    # Standard output is the conversation's, and a log file wants no bars.
    console = Console(stderr=True, highlight=False, quiet=not sys.stderr.isatty())
    with StartReport(console, num_ranks=num_ranks(config, source.config)) as report:
        return await stack.enter_async_context(
            running_server(config, source, on_event=report.on_event)
        )


def _pass_error(ended: Future[None], connected: Future[ChatClient]) -> None:
    """Wake whoever waits for the connection when its life ended before there was one."""
    if connected.done():
        return
    if ended.cancelled():
        connected.cancel()
    else:
        connected.set_exception(ended.exception())
