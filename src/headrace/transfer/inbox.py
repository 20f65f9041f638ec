"""Judges immediates: which count, and when an expected sum is reached. Sans-IO.

The contract of a write says *at most once*, from a writer of the right generation, under an id
that is never used again. This is where each half of that sentence is enforced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.errors import TransferError
from headrace.core.transport import Immediate

# Immediates may overtake ``expect`` only by the time a caller needs between two lines; anything
# beyond this many is noise and must not grow without bound.
MAX_EARLY = 4096

# Why an immediate did not count: its session was over, its writer was not expected, it came twice,
# or too many came before anything was expected.
DROP_REASONS = ("late", "stale", "repeat", "early")


@dataclass(slots=True)
class _Expected:
    num_bytes: int
    writers: Mapping[int, int] | None
    received: int = 0
    seen: set[tuple[int, int, int]] = field(default_factory=set)


class Inbox:
    """Sums immediates by id against what is expected.

    Guarantees:
        * A repeat (same id, source rank, generation, write number) never counts.
        * An immediate of a rank or generation that the id was not expected from never counts.
        * An id completes at most once, and once retired can never be expected again.
        * Surplus of an id not yet expected is kept (the newest ``MAX_EARLY`` ids); surplus of a
          retired id is dropped and counted.
        * Memory does not grow with the number of retired ids, if ids are minted in rising order.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._expected: dict[int, _Expected] = {}
        self._early: dict[int, list[Immediate]] = {}
        self._num_early = 0
        self._retired_below = 0
        self._retired: set[int] = set()
        self._completed: list[int] = []
        self._accepted: list[Immediate] = []

    def expect(self, imm: int, num_bytes: int, *, writers: Mapping[int, int] | None = None) -> None:
        """Declare the sum at which ``imm`` is complete.

        Args:
            imm: Immediate id, never used before in this generation.
            num_bytes: Destination bytes that all writes deliver together.
            writers: Generation of each source rank that may write; None accepts any.

        Raises:
            TransferError: The id is in use or was used before.
        """
        if imm in self._expected or self.is_retired(imm):
            raise TransferError(
                f"immediate {imm} was expected before: ids are never reused in a generation"
            )
        self._expected[imm] = _Expected(num_bytes, writers)
        early = self._early.pop(imm, [])
        self._num_early -= len(early)
        for immediate in early:
            self._count(immediate)
        if num_bytes == 0:
            self._completed.append(imm)

    def deliver(self, immediate: Immediate) -> None:
        """Take one immediate from the transport."""
        if immediate.imm in self._expected:
            self._count(immediate)
        elif self.is_retired(immediate.imm):
            self.dropped["late"] += 1
        else:
            self._keep_early(immediate)

    def retire(self, imm: int) -> None:
        """Forget an id whose session is over; whatever still comes for it is dropped.

        Raises:
            TransferError: The id was never expected.
        """
        if self._expected.pop(imm, None) is None:
            raise TransferError(f"immediate {imm} is not expected: nothing to retire")
        self._retired.add(imm)
        while self._retired_below in self._retired:
            self._retired.remove(self._retired_below)
            self._retired_below += 1

    def is_retired(self, imm: int) -> bool:
        """Whether the id's session is over."""
        return imm < self._retired_below or imm in self._retired

    def take(self) -> tuple[list[int], list[Immediate]]:
        """Return ids completed and immediates accepted since the last call."""
        taken = self._completed, self._accepted
        self._completed, self._accepted = [], []
        return taken

    def _count(self, immediate: Immediate) -> None:
        expected = self._expected[immediate.imm]
        rank, generation = immediate.source_rank, immediate.generation
        if expected.writers is not None and expected.writers.get(rank) != generation:
            self.dropped["stale"] += 1
            return
        write = (rank, generation, immediate.write_number)
        if write in expected.seen:
            self.dropped["repeat"] += 1
            return
        expected.seen.add(write)
        before = expected.received
        expected.received += immediate.num_bytes
        self._accepted.append(immediate)
        if before < expected.num_bytes <= expected.received:
            self._completed.append(immediate.imm)

    def _keep_early(self, immediate: Immediate) -> None:
        if self._num_early >= MAX_EARLY:
            oldest = next(iter(self._early))
            lost = len(self._early.pop(oldest))
            self._num_early -= lost
            self.dropped["early"] += lost
        self._early.setdefault(immediate.imm, []).append(immediate)
        self._num_early += 1
