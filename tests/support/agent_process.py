"""``headrace agent`` as a user runs it, and a deployment file that uses it."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli_process import BOUND_S, children, command, headrace

FILE = """
model = "{model}"
transport = "tcp"
key_file = "{key}"
[hosts]
b = "{address}"
[prefill]
tp = 2
hosts = ["b"]
[decode]
dp = 2
[engine]
kv_cache_mib = 8
"""


class AgentProcess:
    """One running agent.

    Args:
        listen: Address and port.
        key: Key file.
        prefix: What the command line begins with, to run it in another network.
    """

    def __init__(self, listen: str, key: Path, *, prefix: tuple[str, ...] = ()) -> None:
        self.lines: list[str] = []
        arguments = ("agent", "--listen", listen, "--key-file", str(key))
        self.process = subprocess.Popen(
            [*prefix, *command(*arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(BOUND_S), self.lines
        (line,) = [line for line in self.lines if line.startswith("agent listening on ")]
        self.address = line.removeprefix("agent listening on ")

    def ranks(self) -> list[int]:
        return children(self.process.pid)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self._wait()

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self._wait()

    def _wait(self) -> int:
        try:
            return self.process.wait(BOUND_S)
        finally:
            self.process.kill()
            self._reader.join(BOUND_S)
            assert self.process.stdout is not None
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("agent listening on "):
                self._listening.set()
        self._listening.set()


@contextmanager
def running_agent(
    listen: str, key: Path, *, prefix: tuple[str, ...] = ()
) -> Iterator[AgentProcess]:
    agent = AgentProcess(listen, key, prefix=prefix)
    try:
        yield agent
        if agent.process.poll() is None:
            assert agent.stop() == 128 + signal.SIGINT, agent.lines
    finally:
        if agent.process.poll() is None:
            agent.kill()


def write_key(folder: Path) -> Path:
    key = folder / "key"
    assert headrace("agent", "--new-key", str(key)).returncode == 0
    return key


def write_deployment(folder: Path, *, key: Path, address: str, model: str = "tiny") -> Path:
    file = folder / "deploy.toml"
    file.write_text(FILE.format(model=model, key=key, address=address))
    return file
