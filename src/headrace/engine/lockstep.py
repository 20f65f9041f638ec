"""Agreement of a decode replica's ranks on when a step happens.

Every rank has its own requests, but the experts are shared, so a step is one sequence of
collectives that all ranks must enter. While any rank has work all ranks step, with or without
rows of their own; when all are idle the replica sleeps until a message, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from headrace.comm.group import Group
from headrace.core.flight import Flight


class StepKind(IntEnum):
    """What a rank wants the next step to be; the largest wish of the replica wins."""

    IDLE = 0
    DECODE = 1


class Lockstep:
    """One rank's part of the agreement.

    Args:
        group: The replica's collectives.
        wake_peers: Sends ``Wake(step)`` to every other rank.
        flight: Told of every step, before the ranks agree on it.

    Guarantees:
        All ranks return the same kind for the same step number, whoever woke the replica and
        however many did at once; a ``Wake`` for a step already taken is ignored.
    """

    def __init__(
        self, group: Group, wake_peers: Callable[[int], None], *, flight: Flight | None = None
    ) -> None:
        self._group = group
        self._flight = flight or Flight()
        self._wake_peers = wake_peers
        self.step = 0
        self._is_awake = False

    @property
    def is_awake(self) -> bool:
        """Whether this rank owes the replica an agreement before it may sleep."""
        return self._is_awake

    def on_wake(self, step: int) -> None:
        """Take a peer's ``Wake``; stale ones belong to a step that all ranks have left."""
        if step >= self.step:
            self._is_awake = True

    def next_step(self, wish: StepKind) -> StepKind:
        """Agree on the next step; ``IDLE`` means that this rank may sleep.

        Raises:
            ReplicaError: A rank did not come within the group's deadline.
        """
        if self._group.size == 1:
            if wish is not StepKind.IDLE:
                self._flight.enter_step(self.step)
                self.step += 1
            return wish
        if not self._is_awake:
            if wish is StepKind.IDLE:
                return wish
            self._wake_peers(self.step)
            self._is_awake = True
        self._flight.enter_step(self.step)
        agreed = StepKind(max(self._group.agree(int(wish))))
        self.step += 1
        self._is_awake = agreed is not StepKind.IDLE
        return agreed
