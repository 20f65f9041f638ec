"""The strict loader behind every configuration: unknown keys are errors with a suggestion."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from headrace.core.errors import ConfigError

T = TypeVar("T", bound=Struct)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or raise ``ConfigError`` with the file and the place."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def build(kind: type[T], data: Mapping[str, Any], *, where: str) -> T:
    """Make a config struct from plain data, refusing what it does not know.

    Args:
        kind: The struct to build; nested structs are checked the same way.
        data: Plain values, as TOML or flags give them.
        where: Name of the source for messages, e.g. ``deploy.toml [engine]``.

    Raises:
        ConfigError: Unknown key (with the nearest known one), wrong type, or a failed check.
    """
    _refuse_unknown(kind, data, where)
    try:
        return msgspec.convert(dict(data), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _refuse_unknown(kind: type[Struct], data: Mapping[str, Any], where: str) -> None:
    hints = get_type_hints(kind)
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(f"{where}: unknown key {key!r}; {suggest(key, hints)}")
        nested = _struct_in(hints[key])
        if isinstance(value, Mapping) and nested is not None:
            _refuse_unknown(nested, value, f"{where}.{key}")


def _struct_in(hint: Any) -> type[Struct] | None:
    """Return the struct of a hint such as ``Kind`` or ``Kind | None``."""
    for option in (hint, *get_args(hint)):
        if isinstance(option, type) and issubclass(option, Struct):
            return option
    return None


def suggest(key: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return ``did you mean 'x'?`` or the list of what is known.

    Example:
        >>> suggest("blok_size", ["block_size", "dtype"])
        "did you mean 'block_size'?"
    """
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known keys: " + ", ".join(sorted(known))
