"""Chunks in flight: who may decode, and whose blocks come back when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.core.plans import Chunk
from headrace.engine.lane import PASSED, InlineTrack, PrefillLane
from headrace.kvcache.block_table import BlockTable
from headrace.kvcache.pool import BlockPool
from tests.support.held_track import HeldTrack

SIZE = 4


class Deck:
    """A lane over a held track, with sequences of given lengths."""

    def __init__(self, max_tokens: int = 1000) -> None:
        self.pool = BlockPool(16, SIZE)
        self.track = HeldTrack()
        self.lane = PrefillLane(max_tokens=max_tokens)
        self.ran: list[str] = []

    def sequence(self, name: str, length: int) -> SimpleNamespace:
        tokens = [sum(map(ord, name)) + index for index in range(length)]
        table = BlockTable.open(self.pool, self.pool.match(tokens), length)
        assert table is not None
        sequence = SimpleNamespace(sequence_id=name, token_ids=tokens, table=table, blocks=table)
        sequence.num_missing_tokens = length - 1 - table.num_tokens
        return sequence

    def launch(self, sequence: SimpleNamespace, num_tokens: int) -> None:
        start = sequence.blocks.num_tokens
        mark = self.track.enqueue(lambda: self.ran.append(f"{sequence.sequence_id}{start}"))
        sequence.blocks.advance(num_tokens)
        sequence.num_missing_tokens -= num_tokens
        self.lane.note([(sequence, Chunk(sequence.sequence_id, start, num_tokens))], mark)

    def settled(self, *, hands_over: bool = False) -> list[str]:
        return [each.sequence_id for each in self.lane.settle(hands_over=hands_over)]


def test_a_sequence_settles_once_and_only_when_its_last_chunk_has_passed() -> None:
    deck = Deck()
    one = deck.sequence("one", 13)
    deck.launch(one, 8)
    deck.launch(one, 4)
    assert deck.settled() == []
    deck.track.release()
    assert deck.settled() == []
    assert deck.pool.match(one.token_ids).num_tokens == 0
    deck.track.release()
    assert deck.settled() == ["one"]
    assert deck.settled() == []
    assert deck.pool.match(one.token_ids).num_tokens == 12
    assert not deck.lane.holds(one.blocks)


def test_a_whole_prompt_is_handed_over_when_nobody_decodes_and_a_part_is_not() -> None:
    deck = Deck()
    part, whole = deck.sequence("part", 13), deck.sequence("whole", 9)
    deck.launch(whole, 8)
    deck.launch(part, 8)
    assert deck.settled(hands_over=True) == ["whole"]
    assert (deck.ran, deck.track.num_held) == (["whole0"], 1)


def test_what_is_not_launched_is_not_handed_over_yet() -> None:
    deck = Deck()
    deck.track.is_launched = False
    deck.launch(deck.sequence("whole", 9), 8)
    assert deck.settled(hands_over=True) == []
    deck.track.is_launched = True
    assert deck.settled(hands_over=True) == ["whole"]


def test_tokens_in_flight_are_bounded() -> None:
    deck = Deck(max_tokens=10)
    one = deck.sequence("one", 13)
    assert deck.lane.room == 10
    deck.launch(one, 8)
    assert deck.lane.room == 2
    deck.launch(one, 2)
    assert deck.lane.room == 0
    deck.track.release()
    assert deck.lane.room == 8


def test_blocks_that_a_step_touches_come_back_after_it() -> None:
    deck = Deck()
    one, two = deck.sequence("one", 9), deck.sequence("two", 5)
    deck.launch(one, 8)
    deck.launch(two, 4)
    for each in (one, two):
        deck.lane.let_go(each.table)
        each.table = None
    assert deck.pool.num_free == 16 - 5
    assert deck.lane.is_leaving
    deck.track.release()
    assert deck.settled() == []
    assert deck.pool.num_free == 16 - 2
    deck.track.release()
    assert deck.settled() == []
    assert deck.pool.is_idle
    assert not deck.lane.is_leaving
    deck.pool.check_invariants()


def test_a_sequence_that_came_back_with_another_table_is_not_mistaken_for_it() -> None:
    deck = Deck()
    one = deck.sequence("one", 9)
    deck.launch(one, 8)
    deck.lane.let_go(one.table)
    again = deck.sequence("one", 9)
    one.table = one.blocks = again.table
    deck.launch(one, 4)
    deck.track.release()
    assert deck.settled() == []
    assert deck.lane.holds(one.blocks)
    deck.track.release()
    assert deck.settled() == ["one"]


@pytest.mark.parametrize("hands_over", [False, True])
def test_an_inline_track_is_done_at_once(hands_over: bool) -> None:
    deck, ran = Deck(), []
    one = deck.sequence("one", 9)
    track = InlineTrack()
    with track.beside():
        track.join()
        mark = track.enqueue(lambda: ran.append(1))
    assert mark.hold_back()
    assert mark is PASSED
    assert ran == [1]
    deck.lane.note([(one, Chunk("one", 0, 8))], mark)
    assert deck.settled(hands_over=hands_over) == ["one"]
    deck.lane.let_go(one.table)
    assert deck.pool.is_idle
