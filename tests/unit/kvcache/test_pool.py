"""Every block is in one state, leaves it only by right, and comes back in the end."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.kvcache.pool import BlockPool
from headrace.kvcache.prefix import ROOT

SIZE = 4


def cache_history(pool: BlockPool, token_ids: list[int]) -> list[int]:
    """Leave the full blocks of a history cached and unreferenced; return them."""
    block_ids = pool.allocate(len(token_ids) // SIZE)
    parent = ROOT
    for place, block_id in enumerate(block_ids):
        own = token_ids[place * SIZE : (place + 1) * SIZE]
        parent = pool.publish(block_id, parent=parent, token_ids=own)
    pool.release(block_ids)
    return block_ids


def test_allocation_is_all_or_nothing():
    pool = BlockPool(4, SIZE)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []


def test_a_refused_allocation_evicts_nothing():
    pool = BlockPool(4, SIZE)
    cache_history(pool, list(range(8)))
    pool.allocate(1)
    assert pool.allocate(4) is None
    assert pool.match(list(range(9))).num_tokens == 8


def test_cached_blocks_count_as_free_and_are_evicted_only_for_want_of_free_ones():
    pool = BlockPool(4, SIZE)
    cached = cache_history(pool, list(range(8)))
    assert (pool.num_free, pool.num_cached) == (4, 2)
    assert set(pool.allocate(2)).isdisjoint(cached)
    assert pool.counters.evicted_blocks == 0
    assert pool.allocate(1) == [cached[1]]
    assert pool.counters.evicted_blocks == 1


def test_the_longest_unused_history_is_evicted_first_and_from_its_end():
    pool = BlockPool(5, SIZE)
    old = cache_history(pool, [1] * 8)
    new = cache_history(pool, [2] * 8)
    evicted = [pool.allocate(1)[0] for _ in range(5)]
    assert evicted[1:] == [old[1], old[0], new[1], new[0]]


def test_a_hit_makes_its_blocks_the_most_recently_used():
    pool = BlockPool(4, SIZE)
    old = cache_history(pool, [1] * 8)
    new = cache_history(pool, [2] * 8)
    hit = pool.match([1] * 9)
    pool.retain(hit.block_ids)
    pool.release(hit.block_ids)
    assert [pool.allocate(1)[0] for _ in range(4)] == [new[1], new[0], old[1], old[0]]


def test_a_descendant_is_evicted_before_its_older_parent():
    pool = BlockPool(3, SIZE)
    parent = cache_history(pool, [1] * 4)
    own = pool.allocate(2)  # another sequence computed the parent too, and continued it
    root = pool.publish(own[0], parent=ROOT, token_ids=[1] * 4)
    pool.publish(own[1], parent=root, token_ids=[2] * 4)
    pool.release(own)
    assert pool.allocate(1) == [own[0]], "the duplicate was never cached"
    assert pool.allocate(1) == [own[1]]
    assert pool.allocate(1) == parent


def test_a_block_is_handed_out_again_only_when_nobody_references_it():
    pool = BlockPool(2, SIZE)
    block_ids = pool.allocate(2)
    pool.retain(block_ids[:1])
    pool.release(block_ids)
    assert pool.num_free == 1
    pool.release(block_ids[:1])
    assert pool.is_idle


def test_without_a_prefix_cache_every_match_is_empty():
    pool = BlockPool(4, SIZE, prefix_cache=False)
    cache_history(pool, list(range(8)))
    assert pool.match(list(range(9))) == ([], 0)


def test_pinned_blocks_are_capped_but_one_large_prompt_may_wait_alone():
    pool = BlockPool(10, SIZE, pinned_fraction=0.5)
    assert pool.can_pin(8)
    block_ids = pool.allocate(3)
    pool.pin(block_ids)
    assert pool.can_pin(2)
    assert not pool.can_pin(3)
    pool.unpin(block_ids)
    assert pool.num_pinned == 0
    assert pool.can_pin(8)


def test_a_pinned_block_cannot_be_let_go_while_its_writer_may_write():
    pool = BlockPool(2, SIZE)
    block_ids = pool.allocate(2)
    pool.pin(block_ids[1:])
    with pytest.raises(ValueError, match="unpin or quarantine"):
        pool.release(block_ids)
    assert pool.num_free == 0, "a refused release changes nothing"
    with pytest.raises(ValueError, match="still has a writer"):
        pool.publish(block_ids[1], parent=ROOT, token_ids=[1] * 4)


def test_quarantined_blocks_come_back_only_when_their_writer_is_quiet():
    pool = BlockPool(3, SIZE)
    block_ids = pool.allocate(2)
    pool.pin(block_ids)
    pool.quarantine(block_ids)
    assert (pool.num_pinned, pool.num_quarantined, pool.num_free) == (0, 2, 1)
    assert pool.allocate(2) is None
    pool.release_quarantined(block_ids)
    assert pool.is_idle
    assert pool.counters.quarantined_blocks == 2


def test_a_quarantined_block_leaves_the_prefix_index():
    pool = BlockPool(3, SIZE)
    block_ids = cache_history(pool, [1] * 4)
    pool.retain(block_ids)
    pool.quarantine(block_ids)
    assert pool.match([1] * 5) == ([], 0)
    pool.check_invariants()


@pytest.mark.parametrize("act", ["release", "pin", "quarantine", "release_quarantined", "retain"])
def test_blocks_that_are_not_held_are_refused(act: str):
    pool = BlockPool(3, SIZE)
    pool.allocate(1)
    with pytest.raises(ValueError, match=r"referenced|quarantined"):
        getattr(pool, act)([0, 2] if act != "release_quarantined" else [0])
    assert pool.num_free == 2
    assert pool.num_references(0) == 1
    pool.check_invariants()


@pytest.mark.parametrize("act", ["release", "quarantine"])
def test_a_block_named_twice_is_refused(act: str):
    pool = BlockPool(3, SIZE)
    pool.allocate(1)
    with pytest.raises(ValueError, match="named twice"):
        getattr(pool, act)([0, 0])


def test_blocks_in_quarantine_are_not_released_twice():
    pool = BlockPool(3, SIZE)
    pool.quarantine(pool.allocate(1))
    pool.release_quarantined([0])
    with pytest.raises(ValueError, match="not quarantined"):
        pool.release_quarantined([0])


def test_num_idle_counts_what_retain_takes_from_the_free_blocks():
    pool = BlockPool(4, SIZE)
    block_ids = cache_history(pool, list(range(8)))
    pool.retain(block_ids[:1])
    before = pool.num_free
    assert pool.num_idle(block_ids) == 1
    pool.retain(block_ids)
    assert before - pool.num_free == 1


class PoolMachine(RuleBasedStateMachine):
    """Any order of legal calls agrees with a dictionary of reference counts."""

    NUM_BLOCKS = 9

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS, SIZE)
        self.references: Counter[int] = Counter()
        self.quarantined: set[int] = set()
        self.published: dict[tuple[int, ...], int] = {}
        self.history_of: dict[int, tuple[int, ...]] = {}

    def held(self) -> list[int]:
        return sorted(self.references)

    def drop(self, block_id: int) -> None:
        self.references[block_id] -= 1
        self.references += Counter()

    def forget_evicted(self) -> None:
        for history, block_id in list(self.published.items()):
            if block_id not in self.pool.index:
                del self.published[history], self.history_of[block_id]

    @rule(num_blocks=st.integers(0, NUM_BLOCKS))
    def allocate(self, num_blocks: int) -> None:
        num_free = self.NUM_BLOCKS - len({*self.references, *self.quarantined})
        block_ids = self.pool.allocate(num_blocks)
        assert (block_ids is None) == (num_blocks > num_free)
        for block_id in block_ids or []:
            assert not self.references[block_id]
            assert block_id not in self.quarantined
            self.references[block_id] = 1
        self.references += Counter()
        self.forget_evicted()

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        block_ids = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.retain(block_ids)
        self.references.update(block_ids)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_ids = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.release(block_ids)
        for block_id in block_ids:
            self.drop(block_id)

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        candidates = [each for each in self.held() if each not in self.quarantined]
        if candidates:
            block_id = data.draw(st.sampled_from(candidates))
            self.pool.pin([block_id])
            self.pool.quarantine([block_id])
            self.drop(block_id)
            self.quarantined.add(block_id)
            self.forget_evicted()

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def release_quarantined(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.quarantined)))
        self.pool.release_quarantined([block_id])
        self.quarantined.remove(block_id)

    @precondition(lambda self: self.references)
    @rule(data=st.data(), token=st.integers(0, 2))
    def publish(self, data: st.DataObject, token: int) -> None:
        block_id = data.draw(st.sampled_from(self.held()))
        if block_id in self.quarantined:
            return
        self.pool.publish(block_id, parent=ROOT, token_ids=[token] * SIZE)
        if block_id not in self.history_of and (token,) not in self.published:
            self.published[(token,)] = block_id
            self.history_of[block_id] = (token,)

    @rule(token=st.integers(0, 2))
    def hit(self, token: int) -> None:
        block_ids, num_tokens = self.pool.match([token] * SIZE + [9])
        expected = [self.published[(token,)]] if (token,) in self.published else []
        assert (block_ids, num_tokens) == (expected, SIZE * len(expected))
        self.pool.retain(block_ids)
        self.references.update(block_ids)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_invariants()
        held = {*self.references, *self.quarantined}
        assert self.pool.num_free == self.NUM_BLOCKS - len(held)
        assert self.pool.is_idle == (not held)
        assert self.pool.num_quarantined == len(self.quarantined)
        for block_id in range(self.NUM_BLOCKS):
            assert self.pool.num_references(block_id) == self.references[block_id]
        self.references += Counter()


TestPoolMachine = PoolMachine.TestCase
