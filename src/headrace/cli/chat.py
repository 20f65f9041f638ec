"""``headrace chat``: talk to a running server, or to one started for the conversation."""

from __future__ import annotations

import asyncio
import signal
import sys
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from headrace.cli import options
from headrace.cli.client import Answer, ChatClient, ChatSettings, chat_client
from headrace.cli.conversation import Conversation, OnText, Turns, typed_lines
from headrace.cli.logs import log_to_stderr
from headrace.cli.loop_thread import LoopThread
from headrace.cli.progress import StartReport
from headrace.cli.server import RunningServer, running_server
from headrace.cli.source import resolve_model
from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, num_ranks
from headrace.serving.openai.config import ServingConfig

DEFAULT_URL = "http://127.0.0.1:8000"

Model = Annotated[
    str,
    typer.Argument(
        metavar="DIR|tiny|replay:FILE",
        help="Start a server with this model for the conversation; without it, talk to --url.",
        show_default=False,
    ),
]
Url = Annotated[
    str,
    typer.Option(
        metavar="URL", help=f"A running server (default {DEFAULT_URL}).", show_default=False
    ),
]
ApiKey = Annotated[
    str, typer.Option(metavar="KEY", help="Key that the server asks for.", show_default=False)
]
Name = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Model to ask for, by default the served one.", show_default=False
    ),
]
System = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Instructions before the conversation.", show_default=False),
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Longest answer.", show_default=False)
]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="0 is greedy; by default the model's.", show_default=False),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="Makes answers repeatable.", show_default=False),
]


def chat(
    model: Model = "",
    url: Url = "",
    api_key: ApiKey = "",
    name: Name = "",
    system: System = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    settings: options.Settings = None,
) -> None:
    """Chat with a model, line by line; answers stream. Without a terminal, read lines.

    /reset starts over, /quit or Ctrl-D leaves, Ctrl-C stops an answer.

    Example: headrace chat tiny
    """
    log_to_stderr("warning")
    roles = {"prefill": prefill, "decode": decode, "mono": mono}
    wants_server = bool(model or config or any(roles.values()))
    if wants_server and url:
        raise ConfigError("--url beside a model: talk to a running server, or start one")
    deployment = None
    if wants_server:
        deployment = options.deployment_from_flags(
            model, config=config, prefill=prefill, decode=decode, mono=mono, settings=settings
        )
    extra = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields = {key: value for key, value in extra.items() if value is not None}
    link = Link(url or DEFAULT_URL, api_key=api_key, deployment=deployment)
    _talk(link, ChatSettings(model=name, fields=fields), system=system)


def _talk(link: Link, settings: ChatSettings, *, system: str) -> None:
    # Both signals end the conversation from wherever the main thread waits.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_terminal = sys.stdin.isatty()
    with LoopThread() as loop:
        ask = link.open(loop, settings)
        if is_terminal:
            typer.echo("/reset starts over, /quit leaves, Ctrl-C stops an answer\n")
        Conversation(ask, system=system, is_patient=is_terminal).run(typed_lines(is_terminal))


class Link:
    """The way to a server: one that runs, or one that lives as long as the loop.

    Args:
        url: Address of the running server.
        api_key: Key that it asks for.
        deployment: What to start instead; its port is a free one.
    """

    def __init__(self, url: str, *, api_key: str, deployment: DeploymentConfig | None) -> None:
        self._url = url
        self._api_key = api_key
        self._deployment = deployment

    def open(self, loop: LoopThread, settings: ChatSettings) -> Ask:
        """Connect, starting the server if it is ours, and return the function that asks it.

        Raises:
            HeadraceError: Nobody answers, or the deployment did not start.
        """
        connected: Future[ChatClient] = Future()
        life = loop.submit(self._live(connected))
        life.add_done_callback(lambda ended: _pass_error(ended, connected))
        client = connected.result()
        if not settings.model:
            name = loop.run(client.model_name())
            settings = ChatSettings(model=name, fields=settings.fields)
        return Ask(loop, client, settings, life=life)

    async def _live(self, connected: Future[ChatClient]) -> None:
        async with AsyncExitStack() as stack:
            url, api_key, server = self._url, self._api_key, None
            if self._deployment is not None:
                server = await self._start(self._deployment, stack)
                url, api_key = server.url, next(iter(self._deployment.serving.api_keys), "")
            client = await stack.enter_async_context(chat_client(url, api_key=api_key))
            connected.set_result(client)
            await (server.serve() if server is not None else asyncio.Event().wait())

    async def _start(self, deployment: DeploymentConfig, stack: AsyncExitStack) -> RunningServer:
        source = resolve_model(deployment.model)
        config = msgspec.structs.replace(deployment, serving=_on_free_port(deployment.serving))
        total = num_ranks(config, source.config)
        with StartReport(Console(stderr=True, highlight=False), num_ranks=total) as report:
            return await stack.enter_async_context(
                running_server(config, source, on_event=report.on_event)
            )


class Ask:
    """Sends the turns so far and blocks until the answer is there, showing it as it comes."""

    def __init__(
        self, loop: LoopThread, client: ChatClient, settings: ChatSettings, *, life: Future[None]
    ) -> None:
        self._loop = loop
        self._client = client
        self._settings = settings
        self._life = life

    def __call__(self, turns: Turns, on_text: OnText) -> Answer:
        """See the class."""
        if self._life.done():
            # Our own server ended meanwhile: its reason says more than a refused connection.
            self._life.result()
        return self._loop.run(self._client.stream(turns, self._settings, on_text=on_text))


def _on_free_port(serving: ServingConfig) -> ServingConfig:
    return msgspec.structs.replace(serving, host="127.0.0.1", port=0)


def _pass_error(ended: Future[None], connected: Future[ChatClient]) -> None:
    """Wake whoever waits for the connection when its life ended before there was one."""
    if connected.done():
        return
    if ended.cancelled():
        connected.cancel()
    else:
        connected.set_exception(ended.exception())
