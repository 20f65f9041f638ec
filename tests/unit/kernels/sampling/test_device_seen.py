"""Slots of seen tokens."""

from __future__ import annotations

import pytest

from headrace.kernels.sampling.device_seen import SeenTokens, in_prompt, output_counts


def test_words_tell_prompt_from_output() -> None:
    seen = SeenTokens(2, vocab_size=8)
    slot = seen.take([1, 2, 1], [2, 5, 5])
    words_V = seen.seen_PV[slot]
    assert in_prompt(words_V).nonzero()[:, 0].tolist() == [1, 2]
    assert output_counts(words_V).tolist() == [0, 0, 1, 0, 0, 2, 0, 0]


def test_counts_stay_at_their_greatest() -> None:
    seen = SeenTokens(1, vocab_size=4)
    words_V = seen.seen_PV[seen.take([3], [3] * 40_000)]
    assert output_counts(words_V)[3] == 32_767
    assert in_prompt(words_V)[3]


def test_a_slot_is_clean_when_it_is_taken_again() -> None:
    seen = SeenTokens(1, vocab_size=4)
    seen.give_back(seen.take([1], [2, 2]))
    assert output_counts(seen.seen_PV[seen.take([], [0])]).tolist() == [1, 0, 0, 0]


def test_all_slots_are_different_until_there_is_none() -> None:
    seen = SeenTokens(3, vocab_size=4)
    assert sorted(seen.take([]) for _ in range(3)) == [0, 1, 2]
    assert seen.num_free == 0
    with pytest.raises(ValueError, match="slots"):
        seen.take([])


def test_a_free_slot_cannot_be_given_back() -> None:
    seen = SeenTokens(1, vocab_size=4)
    for slot in (0, -1, 7):
        with pytest.raises(ValueError, match=f"slot {slot} "):
            seen.give_back(slot)


def test_no_slots_is_a_valid_number() -> None:
    assert SeenTokens(0, vocab_size=4).num_free == 0
