"""An event loop in a thread of its own, for a command whose main thread waits for its user."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads; a context manager.

    Leaving the context cancels what still runs, waits for it, and ends the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-loop")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ended = self.submit(self._cancel_all())
        while not ended.done():
            # Cleaning up is bounded; cutting it short would leave processes behind.
            with contextlib.suppress(KeyboardInterrupt):
                wait([ended])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` and return at once."""
        return asyncio.run_coroutine_threadsafe(self._track(work), self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work``; when this thread is interrupted meanwhile, cancel it first."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _track(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    async def _cancel_all(self) -> None:
        # Only what was submitted: what that work started is its own to end.
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()
