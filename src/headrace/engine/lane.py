"""Prompt chunks on their way: which sequences may decode yet, and whose blocks still have a writer.

A chunk that was enqueued counts as computed for the next plan, but nothing else may read its KV
before its mark has passed. The lane knows marks and tables; where chunks run is a ``Track``'s
business. On a CPU every mark has passed at once, and the lane holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from headrace.core.plans import Chunk
from headrace.engine.sequence import Sequence
from headrace.kvcache.block_table import BlockTable

# More than any step asks for.
UNLIMITED_TOKENS = 1 << 62


class Mark(Protocol):
    """The end of one enqueued step."""

    def has_passed(self) -> bool:
        """Whether the step is done; never waits."""
        ...

    def hold_back(self) -> bool:
        """Have what is enqueued for decode from now on wait for the step, on the device.

        Returns:
            False, and nothing has been done, while the step is not launched: ask again later.
        """
        ...


class Track(Protocol):
    """Where steps are enqueued: prefill's beside decode's, or behind them. One caller."""

    def beside(self) -> AbstractContextManager[object]:
        """Return the context that decode's work is enqueued in."""
        ...

    def join(self) -> None:
        """Have prefill steps enqueued from now on wait for what decode has enqueued so far.

        Their blocks may have been those of a sequence that a decode step still writes to.
        """
        ...

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """Enqueue a prefill step after those before it.

        Args:
            work: Launches the step; may be called in another thread, a little later.
        """
        ...

    def close(self) -> None:
        """Launch nothing any more; what was launched may still run."""
        ...


class _Passed:
    """The mark of what is done, or of what stream order alone keeps in its place."""

    def has_passed(self) -> bool:
        return True

    def hold_back(self) -> bool:
        return True


PASSED: Mark = _Passed()


class InlineTrack:
    """Prefill and decode steps in one line: a CPU, or a device without a second stream."""

    def beside(self) -> AbstractContextManager[object]:
        """See ``Track.beside``."""
        return nullcontext()

    def join(self) -> None:
        """See ``Track.join``: one line is in order by itself."""

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """See ``Track.enqueue``."""
        work()
        return PASSED

    def close(self) -> None:
        """See ``Track.close``."""


@dataclass(frozen=True, slots=True)
class _Job:
    tables: list[BlockTable]
    num_tokens: int
    mark: Mark


class PrefillLane:
    """What a rank knows of chunks that are in flight. One thread; never waits.

    Args:
        max_tokens: Tokens in flight at most [tokens].
    """

    def __init__(self, *, max_tokens: int = UNLIMITED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._jobs: list[_Job] = []
        self._held: set[int] = set()
        self._unsettled: dict[int, tuple[Sequence, BlockTable, Mark]] = {}
        self._leaving: list[BlockTable] = []

    @property
    def room(self) -> int:
        """Prompt tokens that the next step may take [tokens]."""
        self._drop_passed()
        return max(0, self._max_tokens - sum(job.num_tokens for job in self._jobs))

    @property
    def is_leaving(self) -> bool:
        """Whether blocks wait here that nobody wants any more."""
        return bool(self._leaving)

    def holds(self, table: BlockTable) -> bool:
        """Whether a step reads or writes the table's blocks that was in flight when last asked.

        Asks no mark: it is called for every sequence of every step.
        """
        return id(table) in self._held

    def note(self, work: list[tuple[Sequence, Chunk]], mark: Mark) -> None:
        """Remember a step that was enqueued; its chunks are accounted for already."""
        for sequence, _ in work:
            table = sequence.blocks
            self._unsettled[id(table)] = (sequence, table, mark)
        self._jobs.append(
            _Job(
                [sequence.blocks for sequence, _ in work],
                sum(chunk.num_tokens for _, chunk in work),
                mark,
            )
        )
        self._held.update(id(sequence.blocks) for sequence, _ in work)

    def settle(self, *, hands_over: bool) -> list[Sequence]:
        """Return the sequences all of whose chunks are done, each once, and publish their blocks.

        Args:
            hands_over: Nobody decodes, so nobody is stalled: a prompt that is launched whole is
                handed over at once, and what decodes it waits for its mark on the device.
        """
        settled = []
        for key, (sequence, table, mark) in list(self._unsettled.items()):
            if sequence.table is not table:
                del self._unsettled[key]
                continue
            is_whole = hands_over and not sequence.num_missing_tokens
            if not mark.has_passed() and not (is_whole and mark.hold_back()):
                continue
            del self._unsettled[key]
            table.publish(sequence.token_ids)
            settled.append(sequence)
        self._drop_passed()
        return settled

    def let_go(self, table: BlockTable) -> None:
        """Give a table's blocks back: now, or once no step in flight touches them."""
        self._drop_passed()
        if self.holds(table):
            self._leaving.append(table)
        else:
            table.release()

    def _drop_passed(self) -> None:
        # In order: a step's mark passes after those of the steps before it.
        while self._jobs and self._jobs[0].mark.has_passed():
            del self._jobs[0]
        self._held = {id(table) for job in self._jobs for table in job.tables}
        leaving, self._leaving = self._leaving, []
        for table in leaving:
            if self.holds(table):
                self._leaving.append(table)
            else:
                table.release()
