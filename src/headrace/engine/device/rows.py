"""The sampling settings of a step's rows: encoded once a sequence, sent when the rows change."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headrace.engine.device.decode_step import DecodeStep
from headrace.engine.sequence import Sequence
from headrace.kernels.sampling import needs_counts
from headrace.kernels.sampling.device_settings import DeviceRow


@dataclass(frozen=True, slots=True)
class _Entry:
    sequence: Sequence
    table: object
    row: DeviceRow
    slot: int


class RowSettings:
    """Keeps each running sequence's row, and its slot of seen tokens where it has penalties.

    Args:
        step: Whose rows they are.
    """

    def __init__(self, step: DecodeStep) -> None:
        self._sampling = step.sampling
        self._entries: dict[int, _Entry] = {}

    def update(self, sequences: Seq[Sequence], positions: Seq[int]) -> None:
        """Make these sequences the rows of the next step.

        Args:
            sequences: In row order; each holds blocks.
            positions: Position of each row's token; it draws the one after.
        """
        # A sequence that was preempted comes back with another table: its seen tokens are counted
        # anew, since a token on its way then was dropped.
        kept = {}
        for sequence in sequences:
            entry = self._entries.pop(id(sequence), None)
            if entry is not None and entry.table is not sequence.table:
                self._let_go(entry)
                entry = None
            kept[id(sequence)] = entry
        for entry in self._entries.values():
            self._let_go(entry)
        self._entries = {
            id(sequence): kept[id(sequence)] or self._enter(sequence) for sequence in sequences
        }
        rows = [self._entries[id(sequence)].row for sequence in sequences]
        self._sampling.update(rows, positions=[position + 1 for position in positions])

    def _enter(self, sequence: Sequence) -> _Entry:
        params, slot = sequence.submit.params, -1
        if needs_counts(params):
            first = sequence.num_prompt_tokens
            slot = self._sampling.seen.take(sequence.token_ids[:first], sequence.token_ids[first:])
        row = DeviceRow.of(
            params, seed=sequence.seed, vocab_size=self._sampling.vocab_size, slot=slot
        )
        return _Entry(sequence, sequence.table, row, slot)

    def _let_go(self, entry: _Entry) -> None:
        if entry.slot >= 0:
            self._sampling.seen.give_back(entry.slot)
