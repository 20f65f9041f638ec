"""Bytes and FLOPs of attention equal what counting by hand gives."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.costs.attention import (
    AttentionSizes,
    decode_bytes,
    decode_flops,
    prefill_bytes,
    prefill_flops,
    prefill_pairs,
)

SIZES = AttentionSizes(num_heads=8, num_kv_heads=2, head_dim=64)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5))
def test_pairs_are_those_of_the_triangle(parts: list[tuple[int, int]]) -> None:
    query_lens = [queries for queries, _ in parts]
    seq_lens = [queries + before for queries, before in parts]
    counted = sum(before + 1 + i for queries, before in parts for i in range(queries))
    assert prefill_pairs(query_lens, seq_lens) == counted


def test_a_decode_step_is_a_prefill_of_one_token_each() -> None:
    seq_lens = [1, 7, 300]
    assert prefill_flops([1, 1, 1], seq_lens, SIZES) == decode_flops(seq_lens, SIZES)
    assert prefill_bytes([1, 1, 1], seq_lens, SIZES) == decode_bytes(seq_lens, SIZES)


def test_padding_costs_rows_only_and_a_narrow_pool_half() -> None:
    row = 2 * 8 * 64 * 2
    assert decode_bytes([0, 0], SIZES) == 2 * row
    assert decode_flops([0, 0], SIZES) == 0
    narrow = AttentionSizes(num_heads=8, num_kv_heads=2, head_dim=64, kv_bytes=1)
    assert decode_bytes([100], SIZES) - row == 2 * (decode_bytes([100], narrow) - row)


def test_a_sequence_without_queries_costs_nothing_in_prefill() -> None:
    assert prefill_bytes([0, 4], [900, 4], SIZES) == prefill_bytes([4], [4], SIZES)
