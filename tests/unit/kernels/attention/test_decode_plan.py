"""Splits follow from a row's own length, stay within their number, and get enough scratch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.attention.decode_plan import (
    DecodeKnobs,
    decode_knobs,
    make_decode_scratch,
    most_splits,
    split_tokens,
)

KNOBS = DecodeKnobs()
SMALL = DecodeKnobs(tile_tokens=16, base_tokens=32, max_splits=8)


def _num_splits(num_tokens: int, knobs: DecodeKnobs) -> int:
    return -(-num_tokens // split_tokens(num_tokens, knobs))


@pytest.mark.parametrize(
    ("num_tokens", "size"),
    [(1, 256), (16384, 256), (16385, 320), (20480, 320), (20481, 384), (1 << 20, 16384)],
)
def test_a_split_grows_by_tiles_when_a_row_would_have_too_many(num_tokens: int, size: int) -> None:
    assert split_tokens(num_tokens, KNOBS) == size


@given(st.integers(1, 1 << 22), st.sampled_from([KNOBS, SMALL]))
def test_no_row_has_more_splits_than_the_most(num_tokens: int, knobs: DecodeKnobs) -> None:
    assert _num_splits(num_tokens, knobs) <= knobs.max_splits
    assert split_tokens(num_tokens, knobs) % knobs.tile_tokens == 0


@pytest.mark.parametrize("max_tokens", [1, 32, 33, 127, 128, 129, 300, 512, 513, 1000, 1025, 4000])
def test_the_most_splits_of_a_bounded_row_are_exact(max_tokens: int) -> None:
    expected = max(_num_splits(tokens, SMALL) for tokens in range(1, max_tokens + 1))
    assert most_splits(max_tokens, SMALL) == expected


def test_scratch_has_a_place_for_every_split() -> None:
    scratch = make_decode_scratch(
        3, 1024, num_kv_heads=2, queries_per_kv=5, head_dim=64, knobs=SMALL, device="cpu"
    )
    assert scratch.parts_BGXRD.shape == (3, 2, 8, 5, 64)
    assert scratch.lses_BGXR.shape == (3, 2, 8, 5)


def test_a_tile_keeps_its_bytes_whatever_the_head() -> None:
    tiles = {
        (dim, size): decode_knobs(num_kv_heads=4, head_dim=dim, kv_bytes=size).tile_tokens
        for dim, size in [(64, 2), (128, 2), (256, 2), (128, 1), (128, 4)]
    }
    assert tiles == {(64, 2): 128, (128, 2): 64, (256, 2): 32, (128, 1): 64, (128, 4): 32}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"base_tokens": 100}, "base_tokens must be a multiple"),
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeKnobs(**wrong)


def test_registers_let_the_programs_of_a_processor_fit() -> None:
    assert KNOBS.max_registers == 168
    assert DecodeKnobs(programs_per_processor=1).max_registers == 255


def test_few_rows_get_as_many_splits_as_fill_a_device() -> None:
    def knobs(num_rows: int, num_kv_heads: int) -> DecodeKnobs:
        return decode_knobs(num_kv_heads=num_kv_heads, head_dim=128, kv_bytes=2, num_rows=num_rows)

    assert [knobs(rows, 4).max_splits for rows in (1, 2, 4, 8)] == [64, 32, 16, 8]
    assert knobs(8, 1).max_splits == 32
    assert knobs(8, 4).base_tokens < knobs(16, 4).base_tokens < knobs(64, 4).base_tokens
