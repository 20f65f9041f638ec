"""A sequence's next token goes into a block of its own; shared blocks are never written."""

import pytest

from headrace.kvcache.block_table import BlockCopy, BlockTable, blocks_for, blocks_to_open
from headrace.kvcache.pool import BlockPool

SIZE = 4


def open_table(pool: BlockPool, token_ids: list[int]) -> BlockTable:
    table = BlockTable.open(pool, pool.match(token_ids), len(token_ids))
    assert table is not None
    return table


def cache_prompt(pool: BlockPool, token_ids: list[int]) -> list[int]:
    """Leave the full blocks of a prompt cached; return them."""
    table = open_table(pool, token_ids)
    table.advance(len(token_ids) - table.num_tokens)
    table.publish(token_ids)
    block_ids = table.block_ids[: len(token_ids) // SIZE]
    table.finish_copies()
    table.release()
    return block_ids


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_part_full_blocks_count_whole(tokens: int, blocks: int):
    assert blocks_for(tokens, SIZE) == blocks


def test_a_fresh_prompt_gets_contiguous_blocks_for_all_its_tokens():
    pool = BlockPool(8, SIZE)
    table = open_table(pool, list(range(9)))
    assert table.block_ids == table.own_block_ids == [0, 1, 2]
    assert (table.num_tokens, table.capacity, table.copies) == (0, 12, [])


def test_cached_blocks_are_shared_and_the_rest_is_the_sequences_own():
    pool = BlockPool(8, SIZE)
    cached = cache_prompt(pool, list(range(8)))
    table = open_table(pool, list(range(8)) + [99, 98])
    assert table.num_tokens == 8
    assert table.block_ids[:2] == cached
    assert table.own_block_ids == table.block_ids[2:]
    assert table.copies == []


def test_a_prompt_cached_whole_copies_its_last_block_before_the_last_token_is_written():
    pool = BlockPool(8, SIZE)
    cached = cache_prompt(pool, list(range(8)))
    table = open_table(pool, list(range(8)))
    assert table.num_tokens == 7
    assert table.copies == [BlockCopy(cached[1], table.block_ids[1])]
    assert table.block_ids[1] != cached[1]
    assert pool.num_references(cached[1]) == 1, "the source is held until the copy is done"
    table.finish_copies()
    assert pool.num_references(cached[1]) == 0


def test_a_prompt_cached_whole_in_a_full_pool_gives_up_the_copy_and_still_starts():
    pool = BlockPool(2, SIZE)
    cached = cache_prompt(pool, list(range(8)))
    hit = pool.match(list(range(8)))
    assert blocks_to_open(pool, hit, 8) == 2
    table = BlockTable.open(pool, hit, 8)
    assert table is not None
    assert (table.num_tokens, table.copies) == (4, [])
    assert table.block_ids == cached, "the cached block was evicted and taken"
    pool.check_invariants()


def test_a_refused_table_leaves_the_pool_as_it_was():
    pool = BlockPool(4, SIZE)
    cache_prompt(pool, list(range(8)))
    pool.allocate(1)
    hit = pool.match(list(range(8)) + [9] * 8)
    assert BlockTable.open(pool, hit, 16) is None
    assert pool.num_free == 3
    assert pool.match(list(range(9))).num_tokens == 8


def test_cached_tokens_are_counted_once_they_are_used():
    pool = BlockPool(8, SIZE)
    cache_prompt(pool, list(range(8)))
    for _ in range(3):
        pool.match(list(range(8)))  # asking again while a request waits counts nothing
    open_table(pool, list(range(8)))
    assert (pool.counters.opened_tokens, pool.counters.cached_tokens) == (16, 7)


def test_growth_takes_a_block_only_when_the_last_is_full():
    pool = BlockPool(3, SIZE)
    table = open_table(pool, [1, 2, 3])
    table.advance(3)
    assert table.blocks_to_append(1) == 0
    table.advance(1)
    assert table.blocks_to_append(1) == 1
    assert table.blocks_to_append(5) == 2
    assert table.reserve(5)
    assert table.blocks_to_append(5) == 0
    assert not table.reserve(9)
    assert len(table.block_ids) == 3


def test_tokens_without_a_block_are_refused():
    table = open_table(BlockPool(3, SIZE), [1, 2, 3])
    with pytest.raises(ValueError, match="do not fit"):
        table.advance(5)


def test_only_full_blocks_with_complete_kv_enter_the_prefix_cache():
    pool = BlockPool(8, SIZE)
    prompt = list(range(10))
    table = open_table(pool, prompt)
    table.publish(prompt)
    assert pool.match(prompt).num_tokens == 0
    table.advance(7)
    table.publish(prompt)
    assert pool.match(prompt).num_tokens == 4
    table.advance(2)
    table.publish(prompt)
    assert pool.match(prompt).num_tokens == 8


def test_a_fork_shares_full_blocks_and_copies_the_part_full_one():
    pool = BlockPool(8, SIZE)
    table = open_table(pool, list(range(7)))
    table.advance(6)
    sister = table.fork()
    assert sister is not None
    assert sister.num_tokens == 6
    assert sister.block_ids[0] == table.block_ids[0]
    assert sister.copies == [BlockCopy(table.block_ids[1], sister.block_ids[1])]
    assert sister.block_ids[1] not in table.block_ids
    sister.finish_copies()
    assert table.num_reclaimable_blocks == 1


def test_a_fork_at_a_block_boundary_copies_nothing():
    pool = BlockPool(8, SIZE)
    table = open_table(pool, list(range(5)))
    table.advance(4)
    sister = table.fork()
    assert sister is not None
    assert sister.copies == []
    assert sister.block_ids == table.block_ids[:1]
    assert sister.blocks_to_append(1) == 1


def test_forks_that_went_apart_are_cached_under_their_own_histories():
    pool = BlockPool(12, SIZE)
    first, second = [0, 1, 2, 3, 7, 7, 7, 7, 7], [0, 1, 2, 3, 8, 8, 8, 8, 8]
    table = open_table(pool, first)
    table.advance(4)
    table.publish(first)
    sister = table.fork()
    assert sister is not None
    for each, token_ids in ((table, first), (sister, second)):
        assert each.reserve(5)
        each.advance(5)
        each.publish(token_ids)
    assert pool.match(first) == (table.block_ids[:2], 8)
    assert pool.match(second) == (sister.block_ids[:2], 8)


def test_a_fork_without_room_changes_nothing():
    pool = BlockPool(2, SIZE)
    table = open_table(pool, list(range(7)))
    table.advance(6)
    assert table.fork() is None
    assert [pool.num_references(each) for each in table.block_ids] == [1, 1]


def test_released_tables_leave_their_published_history_cached():
    pool = BlockPool(8, SIZE)
    cache_prompt(pool, list(range(10)))
    assert pool.is_idle
    assert pool.match(list(range(10))).num_tokens == 8


def test_a_table_released_before_its_copies_ran_leaks_nothing():
    pool = BlockPool(8, SIZE)
    cache_prompt(pool, list(range(8)))
    open_table(pool, list(range(8))).release()
    assert pool.is_idle


def test_giving_up_a_transfer_quarantines_the_own_blocks_and_frees_the_shared():
    pool = BlockPool(8, SIZE)
    cached = cache_prompt(pool, list(range(4)))
    table = open_table(pool, list(range(10)))
    pool.pin(table.own_block_ids)
    own = table.quarantine()
    assert len(own) == 2
    assert pool.num_quarantined == 2
    assert pool.num_references(cached[0]) == 0
    pool.release_quarantined(own)
    assert pool.is_idle
