"""Where the outputs of one HTTP request gather until its handler reads them.

An HTTP request may be several calls (a list of prompts), each with several choices; their outputs
meet here under the index that the client sees.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.core.messages import Output
from headrace.core.requests import FinishReason
from headrace.serving.fleet import Placement


class Call:
    """One request at one decode rank: the dispatcher's record of it.

    Attributes:
        request_id: Name inside the deployment.
        placement: Where it runs.
        first_index: Index that the client sees for choice 0.
        started_s: When it was submitted, by the dispatcher's clock [s].
        last_s: Per choice, when its last output came.
        has_output: Some choice has had an output.
        unfinished: Choices that have not ended.
    """

    def __init__(self, request_id: str, placement: Placement, *, inbox: Inbox, started_s: float):
        self.request_id = request_id
        self.placement = placement
        self.inbox = inbox
        self.first_index = inbox.num_choices
        self.started_s = started_s
        self.last_s: list[float | None] = [None] * placement.num_sequences
        self.has_output = False
        self.unfinished = set(range(placement.num_sequences))

    def push(self, output: Output) -> None:
        """Hand one output to the reader."""
        if output.finish_reason is not None:
            self.unfinished.discard(output.choice)
        self.inbox.push(self.first_index + output.choice, output)

    def fail(self, reason: str) -> None:
        """End every unfinished choice with an error that is not the request's fault."""
        self.inbox.is_unavailable = True
        for choice in sorted(self.unfinished):
            self.push(
                Output(
                    request_id=self.request_id,
                    choice=choice,
                    token_ids=[],
                    finish_reason=FinishReason.ERROR,
                    error=reason,
                )
            )


class Inbox:
    """An async iterator over batches of (index, output), read by one task.

    A batch holds everything that came since the last one, so a slow reader catches up in one go.
    Iteration ends when every choice of every call has ended, or at once after ``hang_up``.

    Args:
        close: What ``close`` does with each call: the dispatcher forgets it, and aborts it where
            it runs if it is not over.

    Attributes:
        calls: The calls whose outputs come here.
        is_hung_up: The client is gone: nobody will read what still comes.
        is_unavailable: A failure was the deployment's (a dead rank, a stop), not the request's.
    """

    def __init__(self, close: Callable[[Call], None]) -> None:
        self.calls: list[Call] = []
        self.is_hung_up = False
        self.is_unavailable = False
        self._close = close
        self._waiting: deque[tuple[int, Output]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def num_choices(self) -> int:
        """Choices of all calls."""
        return sum(call.placement.num_sequences for call in self.calls)

    @property
    def num_waiting(self) -> int:
        """Outputs not yet read."""
        return len(self._waiting)

    def push(self, index: int, output: Output) -> None:
        """Add an output and wake the reader."""
        self._waiting.append((index, output))
        self._wake()

    def hang_up(self) -> None:
        """The client is gone: drop what waits and end the iteration."""
        self.is_hung_up = True
        self._waiting.clear()
        self._wake()

    def close(self) -> None:
        """Close every call; those not over are aborted. Idempotent."""
        for call in self.calls:
            self._close(call)

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> list[tuple[int, Output]]:
        while not self._waiting:
            if self.is_hung_up or not any(call.unfinished for call in self.calls):
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = list(self._waiting)
        self._waiting.clear()
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
