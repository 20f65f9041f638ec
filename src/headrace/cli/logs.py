"""Where the log of a command goes."""

from __future__ import annotations

import logging

from headrace.core.config import suggest
from headrace.core.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str) -> None:
    """Send the log to standard error from ``level`` on; standard output stays the command's.

    Raises:
        ConfigError: No such level.
    """
    if level not in LEVELS:
        raise ConfigError(f"--log-level {level!r}: {suggest(level, list(LEVELS))}")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
