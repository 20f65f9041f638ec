"""The log goes to standard error, from the level asked for."""

import logging

import pytest

from headrace.cli.logs import log_to_stderr
from headrace.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _restore_the_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_under_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("warning")
    logging.getLogger("headrace.x").info("quiet")
    logging.getLogger("headrace.x").warning("loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("WARNING headrace.x: loud\n")
    assert "quiet" not in captured.err


def test_an_unknown_level_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="--log-level 'warn'.*did you mean 'warning'"):
        log_to_stderr("warn")
