"""A place for run folders whose name is short enough for sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hr-agent-") as folder:
        yield Path(folder)
