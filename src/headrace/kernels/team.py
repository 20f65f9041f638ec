"""Threads that share a list of products, for operators that use one thread by themselves.

An operator gives the interpreter's lock away while it computes, so threads of one process do
compute side by side; handing them work costs some tens of microseconds. Left out: anything that
waits for anything but the team's own work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue

import torch

Task = Callable[[], None]


class _Helper:
    """A daemon thread that runs tasks one after the other."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Task, SimpleQueue[BaseException | None]]] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def start(self, task: Task, done: SimpleQueue[BaseException | None]) -> None:
        self._tasks.put((task, done))

    def _serve(self) -> None:
        # Inference mode belongs to a thread; tensors of one cannot be written outside of it.
        with torch.inference_mode():
            while True:
                task, done = self._tasks.get()
                try:
                    task()
                except BaseException as error:  # raised again where the work came from
                    done.put(error)
                else:
                    done.put(None)
                del task, done


class Team:
    """The calling thread and its helpers. Any number of threads may call at once.

    Args:
        num_threads: Helpers and the caller.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._helpers = [_Helper(f"team-{index}") for index in range(1, num_threads)]

    def run(self, tasks: Sequence[Task]) -> None:
        """Run tasks side by side, the first in this thread; return when all have ended.

        Args:
            tasks: At most ``num_threads``.

        Raises:
            BaseException: What a task raised, once all have ended.
        """
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        others = tasks[1:]
        for helper, task in zip(self._helpers, others, strict=False):
            helper.start(task, done)
        try:
            tasks[0]()
        finally:
            errors = [done.get() for _ in others]
        for error in errors:
            if error is not None:
                raise error


@cache
def team_of(num_threads: int) -> Team:
    """Return the process's team of that size; its threads start with the first call."""
    return Team(num_threads)
