"""How often a replica may be restarted, and how long to wait before: a pure policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """Bounds on restarts of one replica.

    Attributes:
        max_restarts: Restarts within ``window_s`` at most; 0 ends the deployment at the first loss.
        window_s: After so long a restart is forgotten [s].
        min_delay_s: Wait before the second restart of a window, doubled with each more [s].
        max_delay_s: Longest wait [s].
    """

    max_restarts: int = 5
    window_s: float = 120.0
    min_delay_s: float = 0.5
    max_delay_s: float = 10.0


class RestartBudget:
    """The restarts of one replica so far.

    Example:
        >>> budget = RestartBudget(RestartConfig(max_restarts=3, window_s=60.0))
        >>> [budget.take(now_s) for now_s in (0.0, 1.0, 2.0, 3.0, 61.5)]
        [0.0, 0.5, 1.0, None, 0.5]
    """

    def __init__(self, config: RestartConfig) -> None:
        self._config = config
        self._taken_s: deque[float] = deque()

    def take(self, now_s: float) -> float | None:
        """Count a restart and return how long to wait before it [s]; None when none is left."""
        config = self._config
        while self._taken_s and now_s - self._taken_s[0] > config.window_s:
            self._taken_s.popleft()
        num_taken = len(self._taken_s)
        if num_taken >= config.max_restarts:
            return None
        self._taken_s.append(now_s)
        if not num_taken:
            return 0.0
        # The exponent is bounded for the sake of a very large budget.
        return min(config.max_delay_s, config.min_delay_s * 2.0 ** min(num_taken - 1, 32))
