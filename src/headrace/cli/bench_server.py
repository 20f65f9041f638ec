"""A server of its own for a benchmark: ``headrace serve`` as a child process."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.cli.config import format_config
from headrace.core.errors import ReplicaError
from headrace.deployment import DeploymentConfig

# A server that is asked to stop takes at most 5 s; then it is killed.
STOP_S = 15.0


@contextmanager
def serving(config: DeploymentConfig) -> Iterator[str]:
    """Serve a deployment on a free port of loopback as long as the context lasts.

    Yields:
        Its address, ``http://HOST:PORT``.

    Raises:
        ReplicaError: It did not come up; its last line says why.
    """
    front = msgspec.structs.replace(config.serving, host="127.0.0.1", port=0)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        file = Path(name) / "deployment.toml"
        file.write_text(format_config(msgspec.structs.replace(config, serving=front)))
        command = [sys.executable, "-m", "headrace.cli.main", "serve", "--config", str(file)]
        # Its log goes where ours goes.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield _address(process)
        finally:
            _end(process)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            return line.partition(" at ")[2].partition("/v1")[0]
    raise ReplicaError(f"the server ended with exit code {process.wait()} before it served")


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
