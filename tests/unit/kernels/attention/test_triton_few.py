"""The kernel for few rows, interpreted: what it reads early is never the newest token's."""

import pytest
import torch

from headrace.kernels.attention.decode_plan import DecodeKnobs
from headrace.kernels.attention.triton_decode import paged_decode_attention_few_rows
from tests.support.attention_shapes import Heads, attend_exactly, make_cache, make_queries

KNOBS = DecodeKnobs(tile_tokens=16, base_tokens=32, max_splits=8)


@pytest.mark.parametrize("length", [1, 16, 17, 32, 33, 48, 49, 200])
def test_the_newest_token_counts_wherever_it_lies(length: int) -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([length, 40], heads, dtype=torch.float32)
    q_BHD = make_queries(2, heads, dtype=torch.float32)
    out_BHD = paged_decode_attention_few_rows(
        q_BHD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        cache.seq_lens_B,
        scale=heads.scale,
        knobs=KNOBS,
    )
    for row in range(2):
        exact = attend_exactly(q_BHD[row : row + 1], cache, row, scale=heads.scale)[0]
        torch.testing.assert_close(out_BHD[row].double(), exact, rtol=0, atol=5e-6)
