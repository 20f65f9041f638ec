"""Judging ids that came from another process before they become indices."""

from __future__ import annotations

from collections.abc import Collection


def outside(ids: Collection[int], stop: int) -> int | None:
    """Return an id that is not in ``range(stop)``; None if all are.

    Cost:
        Two passes, neither of them in Python.

    Example:
        >>> outside([3, 0, 9], 10), outside([3, -1, 9], 10), outside([3, 12], 10), outside([], 0)
        (None, -1, 12, None)
    """
    if not ids:
        return None
    low, high = min(ids), max(ids)
    if low < 0:
        return low
    return high if high >= stop else None
