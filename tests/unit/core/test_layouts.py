"""The byte contract between prefiller and decoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.layouts import CacheLayout, KvSchema


def make_layout(**changes: object) -> CacheLayout:
    fields: dict = {
        "layers": (
            KvSchema(num_kv_heads=4, head_dim=8, dtype="float32"),
            KvSchema(num_kv_heads=4, head_dim=16, dtype="bfloat16"),
        ),
        "first_head": 1,
        "num_heads": 2,
        "num_blocks": 3,
        "block_size": 16,
    }
    return CacheLayout(**(fields | changes))


def test_atoms_tile_the_region_without_gap_or_overlap() -> None:
    layout = make_layout()
    spans = sorted(
        (layout.atom_offset(layer, kv, head, block), layout.atom_bytes(layer))
        for layer in range(2)
        for kv in range(2)
        for head in layout.heads
        for block in range(layout.num_blocks)
    )
    end = 0
    for offset, num_bytes in spans:
        assert offset == end
        end = offset + num_bytes
    assert end == layout.num_bytes


def test_consecutive_blocks_of_a_head_are_contiguous() -> None:
    layout = make_layout()
    first, second = (layout.atom_offset(1, 1, 2, block) for block in (0, 1))
    assert second - first == layout.atom_bytes(1)


def test_bytes_per_token_counts_keys_and_values_of_the_heads_held() -> None:
    assert make_layout().bytes_per_token() == 2 * 2 * 8 * 4 + 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 48}, "expected a divisor of 128"),
        ({"num_blocks": 0}, "at least one block"),
        ({"first_head": 3}, "heads 3..4 are not heads of a model with 4 KV heads"),
    ],
)
def test_impossible_layouts_are_refused_by_name(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_layout(**changes)


@given(st.sampled_from([16, 32, 64, 128]), st.integers(1, 50), st.integers(0, 2))
def test_region_size_is_tokens_times_bytes_per_token(
    block_size: int, num_blocks: int, first_head: int
) -> None:
    layout = make_layout(block_size=block_size, num_blocks=num_blocks, first_head=first_head)
    assert layout.num_bytes == block_size * num_blocks * layout.bytes_per_token()
