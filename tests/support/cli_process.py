"""The installed command as a process of its own, and what it leaves on the machine."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cluster.rundir import SEGMENTS

# Far beyond what anything here takes on a loaded machine: it ends a hang, and times nothing.
BOUND_S = 100.0


def command(*args: str) -> list[str]:
    """Return the command line of ``headrace ARGS``."""
    return [sys.executable, "-m", "headrace.cli.main", *args]


def headrace(*args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end with ``given`` on standard input."""
    return subprocess.run(
        command(*args), input=given, capture_output=True, text=True, timeout=BOUND_S, check=False
    )


class Serving:
    """``headrace serve`` in the background; a context manager that kills it in the end."""

    def __init__(self, *args: str) -> None:
        self._args = args

    def __enter__(self) -> "Serving":
        self.process = subprocess.Popen(
            command("serve", *self._args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def url(self) -> str:
        """Wait for the line that says where it serves, and return the address."""
        return self.line("serving ").split(" at ")[1].split("/v1")[0]

    def line(self, start: str) -> str:
        """Wait for a line of standard output that starts so, passing over others."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise AssertionError(f"it ended without {start!r}: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str]:
        """Wait for its end and return exit code and standard error."""
        error = self.process.communicate(timeout=BOUND_S)[1]
        return self.process.returncode, error


def children(pid: int) -> list[int]:
    """Return the process ids whose parent is ``pid``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return sorted(found)


@contextmanager
def private_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have commands make their run folders in a folder of this test, which must end up empty.

    Its name is short, since sockets live in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    # This process may have asked before, and the answer is kept.
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    folder.rmdir()


def traces(temporary: Path) -> list[str]:
    """Return the run folders in ``temporary`` and the segments named after them."""
    folders = [path.name for path in temporary.glob("headrace-*")]
    return folders + [path.name for name in folders for path in SEGMENTS.glob(f"{name}*")]


def wait_gone(pids: Sequence[int]) -> None:
    """Return once none of the processes exists any more."""
    deadline_s = time.monotonic() + BOUND_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline_s, f"still there: {pids}"
        time.sleep(0.05)
