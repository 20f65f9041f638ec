"""``headrace serve`` as a user runs it: a process on loopback, ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SOURCE = Path(__file__).parents[2] / "src"
START_TIMEOUT_S = 90.0
# The promise is five seconds; a bounded wait is ten times the figure.
STOP_TIMEOUT_S = 50.0
SERVING = re.compile(r"serving (\S+) at (http://\S+)/v1")


class ServerProcess:
    """One running server.

    Args:
        arguments: What stands after ``headrace serve``.
    """

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.model = ""
        self.url = ""
        self.run_dir = Path()
        self._serving = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from headrace.cli.main import run; run()", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_serving(self) -> None:
        """Return once the server says where it is."""
        self._serving.wait(START_TIMEOUT_S)
        assert self.url, f"the server did not start: {self.lines}"
        files = [Path(file.path) for file in psutil.Process(self.process.pid).open_files()]
        (self.run_dir,) = [path.parent for path in files if path.name == "lock"]

    def ranks(self) -> list[psutil.Process]:
        """Return the rank processes, oldest first."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sorted(children, key=lambda child: (child.create_time(), child.pid))

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code; asserts that every process is gone."""
        children = self.ranks() if self.process.poll() is None else []
        self.process.send_signal(signal.SIGINT)
        return self.wait_gone(children)

    def wait_gone(self, children: list[psutil.Process]) -> int:
        """Wait for the server's own end and return its exit code."""
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.process.kill()
        self._reader.join(STOP_TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        alive = [child.pid for child in children if child.is_running()]
        assert alive == [], f"processes left behind: {alive}"
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = SERVING.search(line)
            if found:
                self.model, self.url = found.groups()
                self._serving.set()
        self._serving.set()


@contextmanager
def running_server(*arguments: str) -> Iterator[ServerProcess]:
    """Serve as long as the context lasts; afterwards nothing may be left on the machine."""
    server = ServerProcess("--port", "0", *arguments)
    try:
        server.wait_serving()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
    assert not server.run_dir.exists()
    name = server.run_dir.name
    assert [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(name)] == []
