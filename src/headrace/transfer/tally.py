"""Counts that several threads add to and any thread reads."""

from __future__ import annotations

import threading
from collections import Counter


class Tally:
    """Monotonic counts by name; what was never counted is 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        """Add to each count that is named."""
        with self._lock:
            self._counts.update(amounts)

    def __getitem__(self, name: str) -> int:
        """Return one count."""
        return self._counts[name]
