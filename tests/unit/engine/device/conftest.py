"""A tiny model on the CPU, run by the engine of a device."""

from pathlib import Path

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.load import load_device
from headrace.models.checkpoint.folder import read_config
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.device_world import narrow_engine, narrow_layout


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "tiny"
    write_checkpoint(path, TinyModel(num_layers=2), tokenizer=True)
    return path


@pytest.fixture
def backend(folder: Path) -> DeviceBackend:
    engine = EngineConfig(dtype="float32", exact=False)
    backend = load_device(folder, read_config(folder), engine, max_tokens=64)
    layout = CacheLayout(
        layers=backend.schemas, first_head=0, num_heads=4, num_blocks=8, block_size=16
    )
    backend.allocate(layout)
    return backend


@pytest.fixture
def narrow_backend(folder: Path) -> DeviceBackend:
    backend = load_device(folder, read_config(folder), narrow_engine(), max_tokens=64)
    backend.allocate(narrow_layout(backend))
    return backend
