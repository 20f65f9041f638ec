"""Loading reads a checkpoint strictly, or makes weights of its shape; a CPU needs no budget."""

from pathlib import Path

import pytest
import torch

from headrace.core.errors import CheckpointError, ConfigError
from headrace.core.launch import EngineConfig
from headrace.engine.device.load import budget_bytes, load_device
from headrace.models.checkpoint.folder import read_config

ENGINE = EngineConfig(dtype="float32", exact=False)


def test_progress_ends_with_every_byte(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    backend = load_device(
        folder,
        read_config(folder),
        ENGINE,
        max_tokens=64,
        on_progress=lambda *step: seen.append(step),
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert budget_bytes(backend, ENGINE) == 0


def test_a_damaged_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError):
        load_device(tmp_path, read_config(folder), ENGINE, max_tokens=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(folder: Path) -> None:
    engine = EngineConfig(device="cuda", load_format="random", exact=False)
    with pytest.raises(ConfigError, match="is_available"):
        load_device(folder, read_config(folder), engine, max_tokens=64)
