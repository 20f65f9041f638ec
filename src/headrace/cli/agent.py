"""``headrace agent``: lend this host's cores and memory to a deployment of another host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import serve
from headrace.cli.logs import log_to_stderr
from headrace.cli.signals import run_until_signal
from headrace.cli.source import resolve_model
from headrace.cluster.agent.agent import Agent
from headrace.cluster.agent.keys import read_key, write_new_key
from headrace.cluster.agent.session import SessionConfig
from headrace.cluster.local import SupervisorConfig
from headrace.core.addresses import parse_address
from headrace.core.errors import ConfigError

Listen = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS:PORT",
        help="Where supervisors reach this host: an address of a private network; port 0 takes a "
        "free one.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The secret that all hosts of a deployment share.",
        show_default=False,
    ),
]
NewKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Make such a file, for its owner only, and leave. Copy it to every host.",
        show_default=False,
    ),
]


def agent(
    listen: Listen = "",
    key_file: KeyFile = None,
    new_key: NewKey = None,
    log_level: serve.LogLevel = "info",
) -> None:
    """Start ranks on this host for deployments of other hosts, until Ctrl-C.

    Example: headrace agent --listen 10.0.0.2:7100 --key-file ~/headrace.key
    """
    log_to_stderr(log_level)
    if new_key is not None:
        if listen or key_file is not None:
            raise ConfigError("--new-key makes a file and leaves: give it alone")
        write_new_key(new_key)
        typer.echo(f"wrote {new_key}: copy it to every host of the deployment, by a safe way")
        return
    if not listen or key_file is None:
        raise ConfigError("give --listen ADDRESS:PORT and --key-file FILE, or --new-key FILE")
    host, port = parse_address(listen, where="--listen")
    session = SessionConfig(
        command=SupervisorConfig().command, find_model=lambda model: resolve_model(model).launch
    )
    run_until_signal(_serve(Agent(read_key(key_file), session=session), host, port))


async def _serve(agent: Agent, host: str, port: int) -> None:
    try:
        bound = await agent.open(host, port)
        typer.echo(f"agent listening on {host}:{bound}")
        await asyncio.Event().wait()
    finally:
        await agent.close()
