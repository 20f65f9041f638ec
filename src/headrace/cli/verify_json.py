"""The report of ``verify`` as a file for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import ConfigError


def check_json_file(path: Path | None) -> None:
    """Refuse a file that could not be written, before anything is run for it.

    Raises:
        ConfigError: Its folder does not exist, or it is a folder itself.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"--json {path}: expected a file in a folder that exists")


def write_json(path: Path | None, data: Any) -> None:
    """Write an object to be read by people too; without a path, do nothing.

    Raises:
        ConfigError: The file cannot be written.
    """
    if path is None:
        return
    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from error
