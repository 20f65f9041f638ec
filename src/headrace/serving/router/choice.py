"""Which decode rank and which prefill replica a request goes to: pure functions.

Observation in, decision with its reason out; no clock, no I/O, no randomness: the simulator runs
the same code. Ties go to the lowest name and rank, so that an idle deployment sends equal prompts
to the same place and finds their blocks cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct


class Health(IntEnum):
    """State of a rank or replica, best first.

    ``LATE`` has missed signs of life or stands still with work pending: it gets new requests only
    when nothing better is left. ``DEAD`` gets none.
    """

    GOOD = 0
    LATE = 1
    DEAD = 2


class Candidate(Struct, frozen=True, kw_only=True):
    """One place where work could go.

    Attributes:
        replica: Replica's name.
        rank: Rank inside it (a prefill replica is entered by its lead, rank 0).
        health: Worst state of the ranks whose help it needs.
        in_flight: Sequences that this router sent there and that are not over.
        num_waiting: Requests not yet admitted, by the last heartbeat.
        num_running: Sequences running, by the last heartbeat.
        free_blocks: Blocks that can be handed out, by the last heartbeat.
    """

    replica: str
    rank: int = 0
    health: Health = Health.GOOD
    in_flight: int = 0
    num_waiting: int = 0
    num_running: int = 0
    free_blocks: int = 0

    @property
    def load(self) -> int:
        """Sequences there: heartbeats lag behind, so what this router sent counts at once."""
        return max(self.in_flight, self.num_waiting + self.num_running)


class Choice(Struct, frozen=True, kw_only=True):
    """Index into the candidates, and why; ``index`` is None when nothing may be chosen."""

    index: int | None
    reason: str


def choose_decode_rank(candidates: Sequence[Candidate]) -> Choice:
    """Choose the decode rank for a new request.

    Returns:
        The healthiest rank; among equals the one with the fewest sequences, then the one with
        the most free blocks, then the first by (replica, rank).

    Guarantees:
        * A dead rank is never chosen; a late one only when no good one exists.
        * Pure, and independent of the order of ``candidates``.

    Example:
        >>> ranks = [
        ...     Candidate(replica="decode0", rank=0, in_flight=3, free_blocks=9),
        ...     Candidate(replica="decode0", rank=1, in_flight=1, free_blocks=4),
        ... ]
        >>> choose_decode_rank(ranks)
        Choice(index=1, reason='decode0.1: 1 sequences, 4 free blocks')
    """
    return _least_loaded(candidates, "no decode rank is alive")


def choose_prefill_replica(candidates: Sequence[Candidate]) -> Choice:
    """Choose the prefill replica that computes a new request's prompt.

    Returns:
        Least load by waiting + running, then most free blocks, then the first name.

    Guarantees:
        * A dead replica is never chosen; a late one only when no good one exists.
        * ``index`` is None when there is none: the decode rank then computes the prompt itself.
    """
    return _least_loaded(candidates, "no prefill replica is alive")


def _least_loaded(candidates: Sequence[Candidate], none_left: str) -> Choice:
    def order(index: int) -> tuple[int, int, int, str, int]:
        one = candidates[index]
        return (one.health, one.load, -one.free_blocks, one.replica, one.rank)

    alive = [i for i, one in enumerate(candidates) if one.health is not Health.DEAD]
    if not alive:
        return Choice(index=None, reason=none_left)
    best = min(alive, key=order)
    one = candidates[best]
    late = ", late but nothing better" if one.health is Health.LATE else ""
    return Choice(
        index=best,
        reason=f"{one.replica}.{one.rank}: {one.load} sequences, "
        f"{one.free_blocks} free blocks{late}",
    )
