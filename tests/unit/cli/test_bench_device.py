"""``headrace bench decode`` and ``prefill`` say in one line what they lack."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headrace.cli.bench import app
from headrace.cli.options import numbers
from headrace.core.errors import ConfigError
from tests.support.checkpoints import TinyModel, write_checkpoint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
@pytest.mark.parametrize("command", ["decode", "prefill"])
def test_a_machine_without_a_device_is_told(command: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TinyModel())
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "torch.cuda.is_available() is False" in str(result.exception)


@pytest.mark.parametrize("text", ["", "1,x", "0", "-3,4"])
def test_lists_of_numbers_are_checked(text: str) -> None:
    with pytest.raises(ConfigError, match="--batch"):
        numbers(text, "--batch")


def test_a_list_of_numbers_is_read() -> None:
    assert numbers("1,8,32", "--batch") == [1, 8, 32]
