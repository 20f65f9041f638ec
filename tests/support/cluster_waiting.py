"""Waiting for what another process does: bounded, and ended by the fact itself."""

import time
from collections.abc import Callable

BOUND_S = 60.0


def until(is_true: Callable[[], bool]) -> None:
    """Return once the condition holds; fail if it never does."""
    deadline_s = time.monotonic() + BOUND_S
    while not is_true():
        assert time.monotonic() < deadline_s, "what the test waits for never came"
        time.sleep(0.01)
