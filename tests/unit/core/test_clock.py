"""The system clock never goes back."""

from __future__ import annotations

from headrace.core.clock import SystemClock


def test_time_does_not_go_back() -> None:
    clock = SystemClock()
    readings = [clock.now_s() for _ in range(100)]
    assert readings == sorted(readings)
