"""A histogram cheap enough to be fed once per token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# 1 ms to 60 s, about three per decade: the same edges for every duration, so that they compare.
DURATION_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip

# 1 KiB to 16 GiB, each eight times the one before: from a block of a tiny model to a long prompt
# of a large one.
BYTE_BUCKETS = tuple(float(1 << shift) for shift in range(10, 35, 3))


class Histogram:
    """Counts of values by upper edge, with their sum. Not thread-safe.

    Args:
        edges: Upper edges, ascending and inclusive; a last one at infinity is implied.
    """

    def __init__(self, edges: Sequence[float] = DURATION_BUCKETS_S) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of values seen."""
        return sum(self._counts)

    def observe(self, value: float, *, times: int = 1) -> None:
        """Count ``value`` as often as ``times`` says."""
        self._counts[bisect_left(self._edges, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (edge, values at or below it), as Prometheus wants buckets.

        Example:
            >>> h = Histogram([1.0, 2.0])
            >>> h.observe(1.0)
            >>> h.observe(5.0, times=2)
            >>> h.cumulative()
            [('1.0', 1.0), ('2.0', 1.0), ('+Inf', 3.0)]
        """
        running, buckets = 0, []
        for edge, count in zip((*map(str, self._edges), "+Inf"), self._counts, strict=True):
            running += count
            buckets.append((edge, float(running)))
        return buckets
