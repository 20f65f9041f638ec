"""The prefill kernel, interpreted: a row follows from its own keys and the tile size alone."""

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention.triton_prefill import PrefillKnobs, paged_prefill_attention
from tests.support.attention_shapes import (
    Heads,
    PagedCache,
    make_cache,
    make_queries,
    query_starts,
)

KNOBS = PrefillKnobs(query_rows=32, tile_tokens=16)


def _run(
    q_THD: Tensor, cache: PagedCache, query_lens: tuple[int, ...], knobs: PrefillKnobs = KNOBS
) -> Tensor:
    return paged_prefill_attention(
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        query_starts(query_lens),
        cache.seq_lens_B,
        scale=q_THD.shape[-1] ** -0.5,
        max_query_len=max(query_lens),
        knobs=knobs,
    )


def test_a_row_does_not_depend_on_its_chunk() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([50], heads, dtype=torch.float32)
    q_THD = make_queries(50, heads, dtype=torch.float32)
    whole = _run(q_THD, cache, (50,))
    first = 0
    for stop in (13, 32, 50):
        part = PagedCache(
            pool_2GNSD=cache.pool_2GNSD,
            block_table_BP=cache.block_table_BP,
            seq_lens_B=torch.tensor([stop], dtype=torch.int32),
        )
        chunk = _run(q_THD[first:stop], part, (stop - first,))
        assert torch.equal(chunk, whole[first:stop])
        first = stop


@pytest.mark.parametrize("query_rows", [16, 64])
def test_a_row_does_not_depend_on_the_rows_of_its_program(query_rows: int) -> None:
    heads = Heads(num_heads=6, num_kv_heads=2, head_dim=64, block_size=32)
    cache = make_cache([41, 20], heads, dtype=torch.float32)
    q_THD = make_queries(50, heads, dtype=torch.float32)
    knobs = PrefillKnobs(query_rows=query_rows, tile_tokens=16)
    other = _run(q_THD, cache, (41, 9), knobs)
    torch.testing.assert_close(other, _run(q_THD, cache, (41, 9)), rtol=1e-5, atol=1e-6)
