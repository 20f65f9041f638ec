"""Whatever happens around it, every sequence reads back exactly the KV of its own history.

The region is modelled as one cell a slot that holds the history its KV was computed from, written
as the engine would: by computing, by a transfer that lands late or never, by copies, and by a
stray writer that still writes to quarantined blocks.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.kvcache.block_table import BlockTable, blocks_to_open
from headrace.kvcache.pool import BlockPool

SIZE = 4
NUM_BLOCKS = 10
GARBAGE = ("garbage",)

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=18)


@dataclass
class Sequence:
    table: BlockTable
    token_ids: list[int]
    is_receiving: bool = False


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, SIZE)
        self.cells: dict[tuple[int, int], tuple] = {}
        self.sequences: list[Sequence] = []
        self.quarantined: list[list[int]] = []

    def pick(self, data: st.DataObject, *, is_receiving: bool) -> Sequence | None:
        some = [each for each in self.sequences if each.is_receiving == is_receiving]
        return data.draw(st.sampled_from(some)) if some else None

    def run_copies(self, table: BlockTable) -> None:
        for source, target in table.copies:
            for slot in range(SIZE):
                self.cells[target, slot] = self.cells.get((source, slot), GARBAGE)
        table.finish_copies()

    def write(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the KV of the next tokens, or let it land."""
        table = sequence.table
        for position in range(table.num_tokens, table.num_tokens + num_tokens):
            block_id = table.block_ids[position // SIZE]
            assert self.pool.num_references(block_id) == 1, "a shared block is written"
            assert block_id not in self.pool.index, "a cached block is written"
            history = tuple(sequence.token_ids[: position + 1])
            self.cells[block_id, position % SIZE] = history
        table.advance(num_tokens)
        table.publish(sequence.token_ids)

    @rule(prompt=prompts, is_receiving=st.booleans())
    def start(self, prompt: list[int], is_receiving: bool) -> None:
        hit = self.pool.match(prompt)
        needed, free = blocks_to_open(self.pool, hit, len(prompt)), self.pool.num_free
        table = BlockTable.open(self.pool, hit, len(prompt))
        assert (table is not None) == (needed <= free)
        if table is None:
            assert self.pool.num_free == free
            return
        assert self.pool.num_free == free - needed - self.copy_sources_taken(table)
        self.run_copies(table)
        sequence = Sequence(table, prompt[:])
        self.sequences.append(sequence)
        if is_receiving and table.num_tokens < len(prompt) - 1:
            sequence.is_receiving = True
            self.pool.pin(table.own_block_ids)
        else:
            self.write(sequence, len(prompt) - 1 - table.num_tokens)

    def copy_sources_taken(self, table: BlockTable) -> int:
        return sum(self.pool.num_references(copy.source) == 1 for copy in table.copies)

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        sequence = self.pick(data, is_receiving=True)
        if sequence is not None:
            self.pool.unpin(sequence.table.own_block_ids)
            sequence.is_receiving = False
            self.write(sequence, len(sequence.token_ids) - 1 - sequence.table.num_tokens)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        sequence = self.pick(data, is_receiving=True)
        if sequence is not None:
            self.quarantined.append(sequence.table.quarantine())
            self.sequences.remove(sequence)

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        for block_id in data.draw(st.sampled_from(self.quarantined)):
            for slot in range(SIZE):
                self.cells[block_id, slot] = GARBAGE

    @precondition(lambda self: self.quarantined)
    @rule()
    def fall_quiet(self) -> None:
        self.pool.release_quarantined(self.quarantined.pop())

    @rule(data=st.data(), token=st.integers(0, 1))
    def decode(self, data: st.DataObject, token: int) -> None:
        sequence = self.pick(data, is_receiving=False)
        if sequence is None:
            return
        needed, free = sequence.table.blocks_to_append(1), self.pool.num_free
        assert sequence.table.reserve(1) == (needed <= free)
        if needed <= free:
            self.write(sequence, 1)
            sequence.token_ids.append(token)

    @rule(data=st.data(), token=st.integers(0, 1))
    def fork(self, data: st.DataObject, token: int) -> None:
        sequence = self.pick(data, is_receiving=False)
        if sequence is None:
            return
        sister = sequence.table.fork()
        if sister is not None:
            self.run_copies(sister)
            token_ids = [*sequence.token_ids[:-1], token]
            self.sequences.append(Sequence(sister, token_ids))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = self.pick(data, is_receiving=False)
        if sequence is not None:
            free, reclaimable = self.pool.num_free, sequence.table.num_reclaimable_blocks
            sequence.table.release()
            assert self.pool.num_free == free + reclaimable
            self.sequences.remove(sequence)

    @invariant()
    def every_sequence_reads_its_own_history(self) -> None:
        for sequence in self.sequences:
            for position in range(sequence.table.num_tokens):
                block_id = sequence.table.block_ids[position // SIZE]
                history = tuple(sequence.token_ids[: position + 1])
                assert self.cells[block_id, position % SIZE] == history

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        self.pool.check_invariants()
        held = {block_id for each in self.sequences for block_id in each.table.block_ids}
        quarantined = {block_id for each in self.quarantined for block_id in each}
        assert self.pool.num_free == NUM_BLOCKS - len(held) - len(quarantined)
        receiving = [each for each in self.sequences if each.is_receiving]
        assert self.pool.num_pinned == sum(len(each.table.own_block_ids) for each in receiving)


TestHistoryMachine = HistoryMachine.TestCase
