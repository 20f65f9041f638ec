"""``headrace serve``: a deployment behind an OpenAI-compatible server."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import options
from headrace.cli.config import format_config
from headrace.cli.logs import log_to_stderr
from headrace.cli.progress import StartReport
from headrace.cli.signals import run_until_signal
from headrace.cli.source import ModelSource, check_files, resolve_model
from headrace.deployment import DeploymentConfig, check_shardings, describe_shardings, num_ranks

_SERVER = "Server"

Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address to listen on. The default is loopback: nobody else can connect.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="Port to listen on (default 8000); 0 takes a free one.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="Key that clients must send. Repeatable. Others on this machine can read command "
        "lines: on a shared one, put api_keys into the deployment file.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Name of the model for clients; by default the folder's.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
Chaos = Annotated[
    str,
    typer.Option(
        metavar="FAULTS",
        help="Break things on purpose, on loopback: lose=0.03,delay=50ms,kill=prefill@12s; also "
        "duplicate, reorder, hold, stop, seed.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="debug, info, warning or error; the log goes to standard error.",
        rich_help_panel=_SERVER,
    ),
]

_log = logging.getLogger(__name__)


def serve(
    model: options.Model = "",
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    key_file: options.KeyFile = "",
    host: Host = "",
    port: Port = None,
    api_key: ApiKeys = None,
    name: Name = "",
    device: options.Device = "",
    load_format: options.LoadFormat = "",
    dtype: options.Dtype = "",
    kv_dtype: options.KvDtype = "",
    exact: options.Exact = None,
    block_size: options.BlockSize = None,
    settings: options.Settings = None,
    chaos: Chaos = "",
    log_level: LogLevel = "warning",
) -> None:
    """Serve a model behind an OpenAI-compatible API until Ctrl-C.

    Example: headrace serve ~/Qwen3-30B-A3B --prefill tp=4,ep=4 --decode dp=2,ep=2
    """
    log_to_stderr(log_level)
    resolved = options.deployment_from_flags(
        model,
        config=config,
        prefill=prefill,
        decode=decode,
        mono=mono,
        transport=transport,
        key_file=key_file,
        device=device,
        load_format=load_format,
        dtype=dtype,
        kv_dtype=kv_dtype,
        exact=exact,
        block_size=block_size,
        settings=settings,
        chaos=chaos,
        serving={"host": host, "port": port, "api_keys": api_key, "model_name": name},
    )
    source = resolve_model(resolved.model)
    check_shardings(resolved, source.config)
    if resolved.engine.load_format == "checkpoint":
        check_files(source)
    _log.info("resolved configuration:\n%s", format_config(resolved))
    run_until_signal(_serve(resolved, source))


async def _serve(config: DeploymentConfig, source: ModelSource) -> None:
    # The web framework takes a second to import: help and refusals must not wait for it.
    from headrace.cli.server import running_server

    console = Console(highlight=False)
    report = StartReport(console, num_ranks=num_ranks(config, source.config))
    with report:
        async with running_server(config, source, on_event=report.on_event) as server:
            report.close()
            sharding = describe_shardings(config, source.config)
            line = f"serving {server.model_name} at {server.url}/v1 ({sharding})"
            console.print(line, soft_wrap=True)
            await server.serve()
