"""The pool's size is a function of the config alone."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig
from headrace.core.layouts import KvSchema
from headrace.engine.memory import make_layout

SCHEMAS = (KvSchema(num_kv_heads=4, head_dim=128, dtype="bfloat16"),) * 8
BLOCK_BYTES = 16 * 8 * 2 * 2 * 128 * 2  # tokens x layers x K|V x heads held x dim x bytes


def blocks(max_model_tokens: int = 1000, **knobs: int) -> int:
    layout = make_layout(
        EngineConfig(**knobs), SCHEMAS, heads=range(2), max_model_tokens=max_model_tokens
    )
    return layout.num_blocks


def test_a_given_size_is_filled_with_whole_blocks() -> None:
    assert blocks(kv_cache_mib=3) == (3 << 20) // BLOCK_BYTES


def test_small_demands_take_no_more_than_they_need() -> None:
    assert blocks(max_sequences=2, max_model_tokens=100) == 2 * 7


def test_large_demands_are_capped() -> None:
    assert blocks(max_sequences=64, max_model_tokens=100_000) == (256 << 20) // BLOCK_BYTES


def test_a_pool_without_a_block_is_refused_with_the_size_to_give() -> None:
    with pytest.raises(ConfigError, match=r"one block of 128 tokens takes .* give at least 3"):
        make_layout(
            EngineConfig(kv_cache_mib=1, block_size=128),
            (KvSchema(num_kv_heads=4, head_dim=128, dtype="float32"),) * 10,
            heads=range(2),
            max_model_tokens=10,
        )
