"""The flags that several commands share, and how they become one deployment config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, load_deployment, parse_sharding

Model = Annotated[
    str, typer.Argument(help="Model folder, 'tiny' (the embedded model) or 'replay:FILE'.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Deployment file (TOML); flags win over it.")
]
Prefill = Annotated[
    str, typer.Option(help="Prefill replicas, e.g. tp=2,ep=2 or tp=4,ep=4,replicas=2.")
]
Decode = Annotated[str, typer.Option(help="Decode replicas, e.g. dp=2,ep=2.")]
Mono = Annotated[str, typer.Option(help="Replicas that do both, e.g. dp=1 (the default).")]
Transport = Annotated[str, typer.Option(help="How KV moves: shm.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other key of the deployment file, e.g. engine.block_size=32."),
]


def deployment_from_flags(
    model: str,
    *,
    config: Path | None = None,
    prefill: str = "",
    decode: str = "",
    mono: str = "",
    transport: str = "",
    settings: Sequence[str] | None = None,
    serving: dict[str, Any] | None = None,
) -> DeploymentConfig:
    """Merge file, flags and ``--set`` pairs into a config; empty flags say nothing.

    Raises:
        ConfigError: Unknown keys, malformed values, contradicting roles.
    """
    flags: dict[str, Any] = {}
    if model:
        flags["model"] = model
    if transport:
        flags["transport"] = transport
    for name, text in (("prefill", prefill), ("decode", decode), ("mono", mono)):
        if text:
            flags[name] = parse_sharding(text, where=f"--{name}")
    for setting in settings or ():
        _set(flags, setting)
    if serving:
        flags["serving"] = {**flags.get("serving", {}), **serving}
    return load_deployment(config, flags)


def _set(flags: dict[str, Any], setting: str) -> None:
    path, eq, text = setting.partition("=")
    if not eq or not path:
        raise ConfigError(f"--set {setting!r}: expected key=value, e.g. engine.block_size=32")
    *tables, key = path.strip().split(".")
    place = flags
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {setting!r}: {table!r} is a value, not a table")
    place[key] = _value(text.strip())


def _value(text: str) -> Any:
    """Read a TOML-like scalar: true/false, number, otherwise a string."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
