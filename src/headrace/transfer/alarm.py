"""A descriptor that becomes readable at a set time: wakes a rank that sleeps on descriptors."""

from __future__ import annotations

import contextlib
import math
import os
import threading

from headrace.core.clock import Clock


class Alarm:
    """Rings when its time has come. A thread of its own waits; it touches nothing else.

    Args:
        clock: Whose seconds ``set`` speaks of.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._at_s = math.inf
        self._is_closing = False
        self._wake: int | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Make the descriptor and start the thread."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable from the time that was set, or from ``ring``, until ``quiet``."""
        if self._wake is None:
            raise RuntimeError("the alarm is not open")
        return self._wake

    def set(self, at_s: float) -> None:
        """Ring at ``at_s`` [s]; an earlier time that was set before stays."""
        with self._changed:
            if at_s < self._at_s:
                self._at_s = at_s
                self._changed.notify()

    def ring(self) -> None:
        """Ring now."""
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def quiet(self) -> None:
        """Make the descriptor unreadable until it rings again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())

    def close(self) -> None:
        """End the thread and close the descriptor. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None

    def _run(self) -> None:
        with self._changed:
            while not self._is_closing:
                left_s = self._at_s - self._clock.now_s()
                if left_s <= 0.0:
                    self._at_s = math.inf
                    self.ring()
                else:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
