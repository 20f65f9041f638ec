"""Calls whose decode rank was lost, until another takes them or their time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.serving.openai.call import Call


class Line:
    """Who waits, longest first. Used inside the event loop whose timers end the waiting.

    Args:
        wait_s: Longest wait of one call [s].
        on_expired: Called with a call that waited that long, after it has left the line.
    """

    def __init__(self, *, wait_s: float, on_expired: Callable[[Call], None]) -> None:
        self.wait_s = wait_s
        self._on_expired = on_expired
        self._timers: dict[Call, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    @property
    def first(self) -> Call | None:
        """Who has waited longest."""
        return next(iter(self._timers), None)

    def add(self, call: Call) -> None:
        """Let a call wait behind the others."""
        loop = asyncio.get_running_loop()
        self._timers[call] = loop.call_later(self.wait_s, self._expire, call)

    def remove(self, call: Call) -> None:
        """Let a call go, if it waits."""
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, call: Call) -> None:
        self.remove(call)
        self._on_expired(call)
