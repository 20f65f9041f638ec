"""Progress of loading, told to the supervisor often enough for a bar and no oftener."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.messages import LoadProgress, Message

# A large model has tens of thousands of tensors; a bar has some dozens of steps.
NUM_REPORTS = 50


class LoadReports:
    """Turns every tensor's progress into at most ``NUM_REPORTS`` messages and a last one.

    Args:
        replica: Replica's name.
        rank: Index in the replica.
        send: Sends one message to the supervisor.
    """

    def __init__(self, *, replica: str, rank: int, send: Callable[[Message], object]) -> None:
        self._replica = replica
        self._rank = rank
        self._send = send
        self._next_bytes = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take the progress after one more tensor [bytes]."""
        if done_bytes < min(self._next_bytes, total_bytes):
            return
        self._next_bytes = done_bytes + total_bytes // NUM_REPORTS
        self._send(
            LoadProgress(
                replica=self._replica,
                rank=self._rank,
                done_bytes=done_bytes,
                total_bytes=total_bytes,
            )
        )
