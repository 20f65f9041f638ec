"""Shows how ranks come up, and come back: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from headrace.cluster.events import Event, RankExited, ReplicaBack, ReplicaLost
from headrace.core.messages import LoadProgress, Ready

_log = logging.getLogger(__name__)


class StartReport:
    """Follows the ranks of a deployment from start to readiness; a context manager.

    Args:
        console: Where to write.
        num_ranks: Ranks that are started.
    """

    def __init__(self, console: Console, *, num_ranks: int) -> None:
        self._console = console
        self._num_ranks = num_ranks
        self._ready: set[str] = set()
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars off the terminal; idempotent."""
        self._bars.stop()

    def on_event(self, event: Event) -> None:
        """Show one event of a rank's life."""
        if isinstance(event, LoadProgress):
            self._show(f"{event.replica}.{event.rank}", event.done_bytes, event.total_bytes)
        elif isinstance(event, Ready):
            self._show_ready(f"{event.replica}.{event.info.rank}")
        elif isinstance(event, ReplicaLost | ReplicaBack):
            self._console.print(str(event), highlight=False, soft_wrap=True)
        elif isinstance(event, RankExited) and event.exit_code == 1:
            # Its own account may be a traceback, which one line cannot hold.
            _log.error("%s wrote last:\n%s", event.name, "\n".join(event.last_lines))

    def _show(self, rank: str, done_bytes: int, total_bytes: int) -> None:
        task = self._task(rank)
        self._bars.update(task, completed=done_bytes, total=total_bytes, state="loading")

    def _show_ready(self, rank: str) -> None:
        if rank in self._ready:
            # It came back; its replica will say so.
            return
        self._ready.add(rank)
        task = self._task(rank)
        self._bars.update(task, state="ready")
        if not self._console.is_terminal:
            line = f"{rank} ready ({len(self._ready)} of {self._num_ranks})"
            self._console.print(line, highlight=False, soft_wrap=True)

    def _task(self, rank: str) -> TaskID:
        if rank not in self._tasks:
            self._tasks[rank] = self._bars.add_task(rank, total=None, state="starting")
        return self._tasks[rank]
