"""``headrace chat``: talk to a running server, or to one started for the conversation."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.conversation import Conversation, typed_lines
from headrace.cli.logs import log_to_stderr
from headrace.cli.loop_thread import LoopThread
from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig

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
    int | None, typer.Option(metavar="TOKENS", min=1, help="Longest answer.", show_default=False)
]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER", min=0.0, help="0 is greedy; by default the model's.", show_default=False
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help="Makes answers repeatable.", show_default=False),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Ask the model's chat template for reasoning, or for none.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the model is.

    Attributes:
        url: Address of a running server.
        api_key: Key that it asks for.
        deployment: What to start instead, on a free port, for as long as the conversation lasts.
    """

    url: str
    api_key: str = ""
    deployment: DeploymentConfig | None = None


def chat(
    model: Model = "",
    url: Url = "",
    api_key: ApiKey = "",
    name: Name = "",
    system: System = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    think: Think = None,
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
    thinking = None if think is None else {"enable_thinking": think}
    extra = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "chat_template_kwargs": thinking,
    }
    fields = {key: value for key, value in extra.items() if value is not None}
    place = Place(url=url or DEFAULT_URL, api_key=api_key, deployment=deployment)
    _talk(place, name, fields=fields, system=system)


def _talk(place: Place, name: str, *, fields: dict[str, Any], system: str) -> None:
    # The web framework takes a second to import: help and refusals must not wait for it.
    from headrace.cli.link import open_link

    # Both signals end the conversation from wherever the main thread waits.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_terminal = sys.stdin.isatty()
    with LoopThread() as loop:
        link = open_link(loop, place, name, fields=fields)
        if is_terminal:
            typer.echo("/reset starts over, /quit leaves, Ctrl-C stops an answer\n")
        conversation = Conversation(link.ask, system=system, is_patient=is_terminal)
        conversation.run(typed_lines(is_terminal))
