"""How a rank waits for another one: give the core away first, then sleep, then give up."""

from __future__ import annotations

import os
import time

# About 100 us of yields on an idle machine: exchanges between ranks that are in step end inside.
# Past that the peer is computing, perhaps on this very core, and every wake-up costs it time.
MAX_YIELDS = 150
MIN_SLEEP_S = 20e-6
MAX_SLEEP_S = 1e-3


class Patience:
    """One wait with a deadline. Every pause releases the GIL, so ranks may be threads.

    Args:
        timeout_s: Seconds after which ``pause`` returns False.
    """

    __slots__ = ("_num_yields", "_started_s", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._num_yields = 0
        self._started_s = 0.0

    @property
    def is_asleep(self) -> bool:
        """Whether the yields are used up: the time to look for peers that are gone."""
        return self._num_yields >= MAX_YIELDS

    @property
    def waited_s(self) -> float:
        """Seconds since the yields were used up; 0 before."""
        return time.monotonic() - self._started_s if self._started_s else 0.0

    def pause(self) -> bool:
        """Give the core away for a moment; False once the deadline has passed."""
        if self._num_yields < MAX_YIELDS:
            self._num_yields += 1
            os.sched_yield()
            return True
        now_s = time.monotonic()
        if not self._started_s:
            self._started_s = now_s
        waited_s = now_s - self._started_s
        # An eighth of the time waited so far: the wake-up comes late by 12 % at most.
        time.sleep(min(MAX_SLEEP_S, max(MIN_SLEEP_S, waited_s / 8)))
        return waited_s < self._timeout_s
