"""The flags that several commands share, and how they become one deployment config."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, load_deployment, parse_sharding

_SHARDING = "Model and sharding"
_ENGINE = "Engine"

Model = Annotated[
    str,
    typer.Argument(
        metavar="DIR|tiny|replay:FILE",
        help="Model folder; 'tiny', the embedded model (the default); or a script of tokens.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Deployment file (TOML). Flags win over it, key by key.",
        rich_help_panel=_SHARDING,
    ),
]
Prefill = Annotated[
    str,
    typer.Option(
        metavar="SIZES",
        help="Prefill replicas: tp=2,ep=2 or tp=4,ep=4,replicas=2. Needs --decode.",
        rich_help_panel=_SHARDING,
        show_default=False,
    ),
]
Decode = Annotated[
    str,
    typer.Option(
        metavar="SIZES",
        help="Decode replicas: dp=2,ep=2. Needs --prefill.",
        rich_help_panel=_SHARDING,
        show_default=False,
    ),
]
Mono = Annotated[
    str,
    typer.Option(
        metavar="SIZES",
        help="Replicas that do both, instead of the two: dp=1 (the default), dp=2,ep=2.",
        rich_help_panel=_SHARDING,
        show_default=False,
    ),
]
Transport = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How KV moves from prefillers to decoders: shm (the default), tcp.",
        rich_help_panel=_SHARDING,
        show_default=False,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="cpu (the default), or cuda: one mono rank on the first GPU.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
LoadFormat = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="checkpoint (the default), or random: weights of the config's shape, for measuring.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="auto (the checkpoint's), float32 or bfloat16.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
KvDtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="auto (as --dtype), or fp8: half the bytes of KV, with --device cuda.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        help="Canonical sums: results do not depend on the sharding, bit for bit.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Tokens of a KV block: a divisor of 128.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
KeyFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="The secret shared with the agents of other hosts.",
        rich_help_panel=_SHARDING,
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key of the deployment file, such as engine.max_sequences=8. Repeatable.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]


def deployment_from_flags(
    model: str = "",
    *,
    config: Path | None = None,
    prefill: str = "",
    decode: str = "",
    mono: str = "",
    transport: str = "",
    key_file: str = "",
    device: str = "",
    load_format: str = "",
    dtype: str = "",
    kv_dtype: str = "",
    exact: bool | None = None,
    block_size: int | None = None,
    settings: Sequence[str] | None = None,
    chaos: str = "",
    serving: dict[str, Any] | None = None,
) -> DeploymentConfig:
    """Merge file, ``--set`` pairs and flags into a config, the later ones winning.

    Empty strings and None say nothing.

    Raises:
        ConfigError: Unknown keys, malformed values, contradicting roles.
    """
    flags: dict[str, Any] = {}
    for setting in settings or ():
        _set(flags, setting)
    roles = {"prefill": prefill, "decode": decode, "mono": mono}
    tables: dict[str, dict[str, Any]] = {
        "": {"model": model, "transport": transport, "chaos": chaos, "key_file": key_file},
        "engine": {
            "device": device,
            "load_format": load_format,
            "dtype": dtype,
            "kv_dtype": kv_dtype,
            "exact": exact,
            "block_size": block_size,
        },
        "serving": serving or {},
        **{name: parse_sharding(text, where=f"--{name}") for name, text in roles.items()},
    }
    for name, table in tables.items():
        given = {key: value for key, value in table.items() if value not in ("", None)}
        if given:
            _table(flags, name).update(given)
    return load_deployment(config, flags)


def _table(flags: dict[str, Any], name: str) -> dict[str, Any]:
    if not name:
        return flags
    table = flags.setdefault(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--set {name}={table!r}: {name} is a table; set one of its keys")
    return table


def _set(flags: dict[str, Any], setting: str) -> None:
    path, eq, text = setting.partition("=")
    if not eq or not path.strip():
        raise ConfigError(f"--set {setting!r}: expected key=value, e.g. engine.block_size=32")
    *names, key = path.strip().split(".")
    place = flags
    for name in names:
        place = _table(place, name)
    place[key] = _value(text.strip())


def _value(text: str) -> Any:
    """Read a value as the file would; what is no TOML is a plain string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def numbers(text: str, flag: str) -> list[int]:
    """Read whole numbers above 0, separated by commas.

    Raises:
        ConfigError: Anything else.
    """
    try:
        parsed = [int(part) for part in text.split(",")]
    except ValueError:
        parsed = []
    if not parsed or min(parsed) < 1:
        raise ConfigError(f"{flag} {text!r}: expected whole numbers above 0, such as 1,8,32")
    return parsed
