"""A hit names complete blocks of exactly the prompt's own history, and leaves the last token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kvcache.prefix import ROOT, PrefixIndex, chain_hash

SIZE = 4
TOKENS = list(range(100, 140))


def insert_chain(index: PrefixIndex, block_ids: list[int], token_ids: list[int]) -> list[bytes]:
    hashes = [ROOT]
    for place, block_id in enumerate(block_ids):
        own = token_ids[place * SIZE : (place + 1) * SIZE]
        hashes.append(index.insert(block_id, parent=hashes[-1], token_ids=own))
    return hashes[1:]


@pytest.mark.parametrize(
    ("num_prompt", "num_tokens", "block_ids"),
    [
        (1, 0, []),
        (3, 0, []),
        (4, 3, [7]),  # cached whole: its block is used in part
        (5, 4, [7]),
        (8, 7, [7, 3]),
        (9, 8, [7, 3]),
        (12, 11, [7, 3, 5]),
        (13, 12, [7, 3, 5]),
        (40, 12, [7, 3, 5]),
    ],
)
def test_hit_covers_the_cached_prefix_but_never_the_last_token(
    num_prompt: int, num_tokens: int, block_ids: list[int]
):
    index = PrefixIndex(SIZE)
    insert_chain(index, [7, 3, 5], TOKENS)
    assert index.match(TOKENS[:num_prompt]) == (block_ids, num_tokens)


def test_same_tokens_after_another_history_are_no_hit():
    index = PrefixIndex(SIZE)
    insert_chain(index, [0, 1], [1, 2, 3, 4, 5, 6, 7, 8])
    assert index.match([9, 2, 3, 4, 5, 6, 7, 8, 0]) == ([], 0)
    assert index.match([5, 6, 7, 8, 0]) == ([], 0)


def test_a_block_is_found_only_from_its_first_token_on():
    index = PrefixIndex(SIZE)
    insert_chain(index, [0], [1, 2, 3, 4])
    assert index.match([1, 2, 3, 5, 6]) == ([], 0)


def test_blocks_of_one_token_leave_the_last_to_compute():
    index = PrefixIndex(1)
    first = index.insert(0, parent=ROOT, token_ids=[5])
    index.insert(1, parent=first, token_ids=[6])
    assert index.match([5]) == ([], 0)
    assert index.match([5, 6]) == ([0], 1)


def test_duplicates_keep_the_first():
    index = PrefixIndex(SIZE)
    first = insert_chain(index, [0], TOKENS)
    assert insert_chain(index, [1], TOKENS) == first
    assert index.match(TOKENS[:6]) == ([0], 4)
    assert 1 not in index
    assert index.counters.duplicate_blocks == 1
    assert insert_chain(index, [0], TOKENS) == first, "entering a block again changes nothing"
    assert index.counters.duplicate_blocks == 1
    index.check_invariants()


def test_part_full_blocks_are_refused():
    with pytest.raises(ValueError, match="3 tokens for a block of 4"):
        PrefixIndex(SIZE).insert(0, parent=ROOT, token_ids=[1, 2, 3])


def test_a_removed_block_hides_its_descendants_until_an_equal_one_comes():
    index = PrefixIndex(SIZE)
    insert_chain(index, [0, 1, 2], TOKENS)
    index.remove(1)
    assert index.match(TOKENS[:13]) == ([0], 4)
    insert_chain(index, [0, 9], TOKENS)
    assert index.match(TOKENS[:13]) == ([0, 9, 2], 12)
    index.check_invariants()


def test_leaf_below_goes_to_the_end_of_the_history():
    index = PrefixIndex(SIZE)
    insert_chain(index, [0, 1, 2], TOKENS)
    assert index.leaf_below(0, {0, 1, 2}) == 2
    assert index.leaf_below(0, {0, 1}) == 1
    assert index.leaf_below(0, {0, 2}) == 0
    assert index.leaf_below(2, {0, 1, 2}) == 2


def test_hashes_tell_parents_and_token_order_apart():
    assert chain_hash(ROOT, [1, 2]) != chain_hash(ROOT, [2, 1])
    assert chain_hash(ROOT, [1, 2]) != chain_hash(chain_hash(ROOT, [1, 2]), [1, 2])
    assert len(chain_hash(ROOT, [1, 2])) == 16


histories = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(entered=st.lists(histories, max_size=6), prompt=histories)
def test_hits_equal_those_of_a_dictionary_of_histories(entered: list[list[int]], prompt: list[int]):
    index, model, next_id = PrefixIndex(SIZE), {}, 0
    for history in entered:
        parent = ROOT
        for end in range(SIZE, len(history) + 1, SIZE):
            own = history[end - SIZE : end]
            parent = index.insert(next_id, parent=parent, token_ids=own)
            model.setdefault(tuple(history[:end]), next_id)
            next_id += 1
    found = []
    for end in range(SIZE, len(prompt) + 1, SIZE):
        if tuple(prompt[:end]) not in model:
            break
        found.append(model[tuple(prompt[:end])])
    num_tokens = min(len(found) * SIZE, len(prompt) - 1)
    assert index.match(prompt) == (found, num_tokens)
    index.check_invariants()
