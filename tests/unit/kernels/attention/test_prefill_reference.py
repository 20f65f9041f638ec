"""The prefill reference is the textbook's causal attention, chunk by chunk."""

import pytest
import torch

from headrace.kernels.attention import prefill_reference
from headrace.kernels.attention.prefill_reference import paged_prefill_attention
from tests.support.attention_shapes import (
    Heads,
    attend_exactly,
    make_cache,
    make_queries,
    query_starts,
)

HEADS = Heads(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16)
# A whole prompt, a chunk after a history, one token, a padding sequence, a block and one past it.
QUERY_LENS = (20, 7, 1, 0, 16, 17)
SEQ_LENS = (20, 40, 33, 0, 16, 49)


@pytest.mark.parametrize("max_scores", [prefill_reference.MAX_SCORES, 6 * 49 * 5])
def test_rows_equal_the_textbook(monkeypatch: pytest.MonkeyPatch, max_scores: int) -> None:
    monkeypatch.setattr(prefill_reference, "MAX_SCORES", max_scores)
    cache = make_cache(SEQ_LENS, HEADS, dtype=torch.float32, width=5)
    q_THD = make_queries(sum(QUERY_LENS), HEADS, dtype=torch.float32)
    starts_B1 = query_starts(QUERY_LENS)
    out_THD = torch.empty_like(q_THD)
    returned = paged_prefill_attention(
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        starts_B1,
        cache.seq_lens_B,
        scale=HEADS.scale,
        max_query_len=20,
        out_THD=out_THD,
    )
    assert returned is out_THD
    for row in range(len(SEQ_LENS)):
        chunk = slice(int(starts_B1[row]), int(starts_B1[row + 1]))
        exact = attend_exactly(q_THD[chunk], cache, row, scale=HEADS.scale)
        torch.testing.assert_close(out_THD[chunk].double(), exact, rtol=0, atol=5e-6)
