"""``headrace config show``: the resolved configuration, as the deployment will run it."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from headrace.cli import options
from headrace.deployment import DeploymentConfig

app = typer.Typer(help="Look at the configuration.")


@app.callback()
def config() -> None:
    """Look at the configuration."""


@app.command("show")
def show(
    model: options.Model = "",
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    key_file: options.KeyFile = "",
    dtype: options.Dtype = "",
    exact: options.Exact = None,
    block_size: options.BlockSize = None,
    settings: options.Settings = None,
) -> None:
    """Print every key with its value after file, flags and defaults, as a deployment file.

    API keys are not shown.

    Example: headrace config show --prefill tp=2,ep=2 --decode dp=2,ep=2 > deploy.toml
    """
    resolved = options.deployment_from_flags(
        model,
        config=config,
        prefill=prefill,
        decode=decode,
        mono=mono,
        transport=transport,
        key_file=key_file,
        dtype=dtype,
        exact=exact,
        block_size=block_size,
        settings=settings,
    )
    typer.echo(format_config(resolved))


def format_config(config: DeploymentConfig) -> str:
    """Return a config as the TOML of a deployment file; keys are counted, not shown."""
    data = msgspec.to_builtins(config)
    keys = data["serving"].pop("api_keys")
    lines = _toml_lines(data)
    if keys:
        # A mask in their place would become a key that everybody knows once the file is used.
        lines.append(f"# api_keys: {len(keys)} not shown")
    return "\n".join(lines)


def _toml_lines(data: dict[str, Any], path: str = "") -> list[str]:
    """Format nested plain data as TOML, tables after the values of their parent."""
    values = {k: v for k, v in data.items() if not isinstance(v, dict) and v is not None}
    tables = {k: v for k, v in data.items() if isinstance(v, dict)}
    lines = [f"[{path}]"] if path else []
    # Strings, numbers, booleans and lists of them are spelled alike in JSON and TOML.
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items()]
    for key, table in tables.items():
        lines += ["", *_toml_lines(table, f"{path}.{key}" if path else key)]
    return lines
