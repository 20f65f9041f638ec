"""Where the outputs of one HTTP request gather until its handler reads them.

An HTTP request may be several calls (a list of prompts), each with several choices; their outputs
meet here under the index that the client sees.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.core.messages import Output


class Inbox:
    """An async iterator over batches of (index, output), read by one task.

    A batch holds everything that came since the last one, so a slow reader catches up in one go.
    Iteration ends when every choice that joined has ended, or at once after ``hang_up``.

    Attributes:
        num_choices: Choices of all calls that joined.
        is_hung_up: The client is gone: nobody will read what still comes.
        is_unavailable: A failure was the deployment's (a dead rank, a stop), not the request's.
    """

    def __init__(self) -> None:
        self.num_choices = 0
        self.is_hung_up = False
        self.is_unavailable = False
        self._num_open = 0
        self._closers: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, Output]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Outputs not yet read."""
        return len(self._waiting)

    def join(self, num_choices: int, close: Callable[[], None]) -> int:
        """Expect a call's outputs; ``close`` is called once nobody reads them any more.

        Returns:
            The index that the client sees for the call's choice 0.
        """
        first_index = self.num_choices
        self.num_choices += num_choices
        self._num_open += num_choices
        self._closers.append(close)
        return first_index

    def push(self, index: int, output: Output) -> None:
        """Add an output and wake the reader."""
        if output.finish_reason is not None:
            self._num_open -= 1
        self._waiting.append((index, output))
        self._wake()

    def hang_up(self) -> None:
        """The client is gone: drop what waits and end the iteration."""
        self.is_hung_up = True
        self._waiting.clear()
        self._wake()

    def close(self) -> None:
        """Close every call that joined; those not over are aborted. Idempotent."""
        closers, self._closers = self._closers, []
        for close in closers:
            close()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> list[tuple[int, Output]]:
        while not self._waiting:
            if self.is_hung_up or not self._num_open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = list(self._waiting)
        self._waiting.clear()
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
