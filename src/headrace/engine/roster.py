"""All unfinished sequences of a decode rank, by phase and in line order."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.sequence import Phase, Sequence


class Roster:
    """Who is here. Knows no pool and no clock: phases change through ``move`` alone."""

    def __init__(self) -> None:
        self._by_id: dict[str, Sequence] = {}
        self._by_phase: dict[Phase, dict[str, Sequence]] = {phase: {} for phase in Phase}
        self._sisters: dict[str, list[Sequence]] = {}
        self._next_order = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._by_id

    def __getitem__(self, sequence_id: str) -> Sequence:
        return self._by_id[sequence_id]

    def take_orders(self, count: int) -> int:
        """Reserve ``count`` places at the end of the line and return the first."""
        first = self._next_order
        self._next_order += count
        return first

    def add(self, sequences: list[Sequence]) -> None:
        """Take in a request's choices; only choice 0 waits, the others follow its prompt."""
        leader, *sisters = sequences
        for sequence in sequences:
            self._by_id[sequence.sequence_id] = sequence
        self._by_phase[leader.phase][leader.sequence_id] = leader
        if sisters:
            self._sisters[leader.sequence_id] = sisters

    def take_sisters(self, leader: Sequence) -> list[Sequence]:
        """Return the choices that waited for ``leader``'s prompt; they wait no longer."""
        return self._sisters.pop(leader.sequence_id, [])

    def num_sisters(self, leader: Sequence) -> int:
        """Choices that still wait for ``leader``'s prompt."""
        return len(self._sisters.get(leader.sequence_id, ()))

    def move(self, sequence: Sequence, phase: Phase) -> None:
        """Put a sequence into another phase; FINISHED forgets it."""
        self._by_phase[sequence.phase].pop(sequence.sequence_id, None)
        sequence.phase = phase
        if phase is Phase.FINISHED:
            del self._by_id[sequence.sequence_id]
            self._sisters.pop(sequence.sequence_id, None)
        else:
            self._by_phase[phase][sequence.sequence_id] = sequence

    def in_phase(self, phase: Phase) -> list[Sequence]:
        """Return the sequences of a phase, oldest place in the line first."""
        return sorted(self._by_phase[phase].values(), key=lambda each: each.order)

    def num_in_phase(self, phase: Phase) -> int:
        """Sequences of a phase."""
        return len(self._by_phase[phase])

    def first_in_line(self) -> Sequence | None:
        """Return who may start next: resumed sequences first, then by arrival."""
        return min(
            self._by_phase[Phase.WAITING].values(),
            key=lambda each: (not each.is_resumed, each.order),
            default=None,
        )

    def num_holding(self) -> int:
        """Sequences that hold blocks, with the sisters who will share them."""
        holding = (Phase.RECEIVING, Phase.COMPUTING, Phase.RUNNING)
        # Also read by the pulse's thread: each copy is one step of the interpreter.
        held = [each for phase in holding for each in list(self._by_phase[phase].values())]
        return len(held) + sum(self.num_sisters(each) for each in held)

    def of_request(self, request_id: str) -> list[Sequence]:
        """Return the unfinished choices of a request."""
        return [each for each in self._by_id.values() if each.submit.request_id == request_id]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._by_id.values()))
