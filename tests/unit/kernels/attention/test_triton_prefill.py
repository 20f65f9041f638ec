"""The Triton prefill kernel, interpreted, is the textbook's causal attention for every row."""

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention.prefill_reference import paged_prefill_attention as reference
from headrace.kernels.attention.triton_prefill import (
    PrefillKnobs,
    paged_prefill_attention,
    prefill_knobs,
)
from tests.support.attention_shapes import (
    Heads,
    PagedCache,
    attend_exactly,
    make_cache,
    make_queries,
    query_starts,
)

KNOBS = PrefillKnobs(query_rows=32, tile_tokens=16)
# A whole prompt, a chunk after a history, one token, a padding sequence, a block and one past it.
QUERY_LENS = (40, 7, 1, 0, 16, 17)
SEQ_LENS = (40, 60, 33, 0, 16, 49)


def _run(
    q_THD: Tensor,
    cache: PagedCache,
    query_lens: tuple[int, ...],
    knobs: PrefillKnobs = KNOBS,
    **scales: Tensor,
) -> Tensor:
    return paged_prefill_attention(
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        query_starts(query_lens),
        cache.seq_lens_B,
        scale=q_THD.shape[-1] ** -0.5,
        max_query_len=max(query_lens, default=0),
        knobs=knobs,
        **scales,
    )


def _check(out_THD: Tensor, q_THD: Tensor, cache: PagedCache, atol: float) -> None:
    starts = query_starts(QUERY_LENS).tolist()
    for row in range(len(QUERY_LENS)):
        chunk = slice(starts[row], starts[row + 1])
        exact = attend_exactly(q_THD[chunk], cache, row, scale=q_THD.shape[-1] ** -0.5)
        torch.testing.assert_close(out_THD[chunk].double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "block_size", "tile"),
    [(2, 64, 16, 16), (6, 64, 32, 16), (16, 128, 16, 32), (32, 64, 16, 64)],
)
def test_rows_equal_the_textbook(num_heads: int, head_dim: int, block_size: int, tile: int) -> None:
    heads = Heads(num_heads=num_heads, num_kv_heads=2, head_dim=head_dim, block_size=block_size)
    cache = make_cache(SEQ_LENS, heads, dtype=torch.float32, width=7)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.float32)
    knobs = PrefillKnobs(query_rows=32, tile_tokens=tile)
    _check(_run(q_THD, cache, QUERY_LENS, knobs), q_THD, cache, 5e-6)


def test_half_precision_keeps_sums_in_single() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache(SEQ_LENS, heads, dtype=torch.float16)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.float16)
    _check(_run(q_THD, cache, QUERY_LENS), q_THD, cache, 2e-3)


@pytest.mark.parametrize("has_scales", [False, True])
def test_eight_bit_keys_and_values_are_scaled_by_head(has_scales: bool) -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache(SEQ_LENS, heads, dtype=torch.float8_e4m3fn)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.float32)
    scales = {}
    if has_scales:
        scales = {"k_scale_G": torch.tensor([0.5, 2.0]), "v_scale_G": torch.tensor([3.0, 0.25])}
    expected = reference(
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        query_starts(QUERY_LENS),
        cache.seq_lens_B,
        scale=heads.scale,
        max_query_len=40,
        **scales,
    )
    out_THD = _run(q_THD, cache, QUERY_LENS, **scales)
    torch.testing.assert_close(out_THD, expected, rtol=1e-5, atol=1e-5)


def test_empty_steps_launch_nothing() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    q_0HD = make_queries(0, heads, dtype=torch.float32)
    for lengths in ((), (0, 0)):
        cache = make_cache(lengths, heads, dtype=torch.float32)
        assert _run(q_0HD, cache, lengths).shape == q_0HD.shape


def test_wider_heads_take_smaller_tiles() -> None:
    tiles = [prefill_knobs(head_dim=dim, element_bytes=2).tile_tokens for dim in (64, 128, 256)]
    assert tiles == [128, 64, 32]
