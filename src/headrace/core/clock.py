"""Time as an argument: policies and state machines never read a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds. The manual clock of tests and simulator lives above."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary, fixed origin."""
        ...


class SystemClock:
    """The machine's monotonic clock, comparable between processes of one host."""

    def now_s(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()
