"""One rank's process: started with its spec on standard input, read line by line, reaped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.cluster.child import command_of
from headrace.cluster.events import RankExited
from headrace.core.launch import LaunchSpec

NUM_LAST_LINES = 20
MAX_LINE_BYTES = 16 << 10

# How long the output of a dead process is read on: a grandchild may hold the pipe open for ever.
DRAIN_S = 0.5

_log = logging.getLogger(__name__)


class RankHandle(Protocol):
    """A rank's process, wherever it runs, as a supervisor handles it. One use: spawn, then wait."""

    @property
    def is_alive(self) -> bool:
        """Whether it was spawned and its end is not known."""
        ...

    @property
    def pid(self) -> int:
        """Process id on its host; 0 when it has none yet."""
        ...

    async def spawn(self) -> None:
        """Start it.

        Raises:
            OSError: It cannot be started.
        """
        ...

    async def wait(self) -> RankExited:
        """Return once it has certainly ended; only then may its memory be taken for quiet.

        One whose host is lost counts as ended: it can write through connections only, and those
        its peers refuse as soon as they hear that its generation is over.
        """
        ...

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it; nothing once it has ended."""
        ...


class RankProcess:
    """A rank from spawn to reaping; used from one event loop.

    It runs in a session of its own, so that a terminal's Ctrl-C reaches the supervisor only, and
    is killed by the kernel when the thread that spawned it ends.

    Args:
        spec: What to run.
        command: Program and arguments, the program as an absolute path.
        on_line: Called with the rank's name and each line of its output.
    """

    def __init__(
        self, spec: LaunchSpec, *, command: tuple[str, ...], on_line: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self._command = command
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._exit: RankExited | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process was spawned and has not been reaped."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id, which is also its session's and group's; 0 before ``spawn``."""
        return self._process.pid if self._process else 0

    async def spawn(self) -> None:
        """Start the process and hand it its spec."""
        command = command_of(self._command, supervisor_pid=os.getpid())
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        self._reader = asyncio.create_task(self._read_lines(self._process))
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(self.spec.to_json())
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            _log.info("%s ended before it had read its spec", self.spec.name)
        stdin.close()

    async def wait(self) -> RankExited:
        """Wait for the end, reap, and return it with the last lines."""
        if self._exit is None:
            assert self._process is not None
            assert self._reader is not None
            exit_code = await self._process.wait()
            await asyncio.wait({self._reader}, timeout=DRAIN_S)
            self._reader.cancel()
            self._exit = RankExited(
                name=self.spec.name, exit_code=exit_code, last_lines=tuple(self._last_lines)
            )
        return self._exit

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process and whatever it started; nothing once it is reaped."""
        if self.is_alive:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                _log.info("%s was gone before %s", self.spec.name, number.name)

    async def _read_lines(self, process: Process) -> None:
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.read(MAX_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take_line(line)
            if len(rest) > MAX_LINE_BYTES:
                self._take_line(rest)
                rest = b""
        if rest:
            self._take_line(rest)

    def _take_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._last_lines.append(text)
        self._on_line(self.spec.name, text)
