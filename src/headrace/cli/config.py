"""``headrace config show``: the resolved configuration, as the deployment will run it."""

from __future__ import annotations

import msgspec
import typer

from headrace.cli import options

app = typer.Typer(help="Look at configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Look at configuration."""


@app.command("show")
def show(
    model: options.Model = "",
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    settings: options.Settings = None,
) -> None:
    """Print every key with its value after file, flags and defaults; secrets are masked."""
    resolved = options.deployment_from_flags(
        model,
        config=config,
        prefill=prefill,
        decode=decode,
        mono=mono,
        transport=transport,
        settings=settings,
    )
    data = msgspec.to_builtins(resolved)
    if data["serving"].get("api_keys"):
        data["serving"]["api_keys"] = ["***" for _ in data["serving"]["api_keys"]]
    typer.echo("\n".join(_toml_lines(data)))


def _toml_lines(data: dict, path: str = "") -> list[str]:
    """Format nested plain data as TOML, tables after the values of their parent."""
    values = {k: v for k, v in data.items() if not isinstance(v, dict) and v is not None}
    tables = {k: v for k, v in data.items() if isinstance(v, dict)}
    lines = [f"[{path}]"] if path else []
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items()]
    for key, table in tables.items():
        lines += ["", *_toml_lines(table, f"{path}.{key}" if path else key)]
    return lines
