"""The decode reference is the textbook's attention, whatever lies outside a sequence."""

import pytest
import torch

from headrace.kernels.attention.decode_reference import paged_decode_attention
from tests.support.attention_shapes import Heads, attend_exactly, make_cache, make_queries

LENGTHS = (0, 1, 15, 16, 17, 32, 100)


@pytest.mark.parametrize("num_heads", [2, 6, 32])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_equal_the_textbook(num_heads: int, head_dim: int) -> None:
    heads = Heads(num_heads=num_heads, num_kv_heads=2, head_dim=head_dim, block_size=16)
    cache = make_cache(LENGTHS, heads, dtype=torch.float32, width=9)
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.float32)
    out_BHD = torch.empty_like(q_BHD)
    returned = paged_decode_attention(
        q_BHD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        cache.seq_lens_B,
        scale=heads.scale,
        out_BHD=out_BHD,
    )
    assert returned is out_BHD
    for row in range(len(LENGTHS)):
        exact = attend_exactly(q_BHD[row : row + 1], cache, row, scale=heads.scale)[0]
        torch.testing.assert_close(out_BHD[row].double(), exact, rtol=0, atol=5e-6)
    assert not out_BHD[0].any()


def test_scales_multiply_keys_and_values_of_their_head() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([40, 3], heads, dtype=torch.float32)
    q_BHD = make_queries(2, heads, dtype=torch.float32)
    k_scale_G, v_scale_G = torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.25])
    scales_2G = torch.stack((k_scale_G, v_scale_G))
    scaled = cache.pool_2GNSD * scales_2G[:, :, None, None, None]
    tables = (cache.block_table_BP, cache.seq_lens_B)
    out_BHD = paged_decode_attention(
        q_BHD,
        cache.pool_2GNSD,
        *tables,
        scale=heads.scale,
        k_scale_G=k_scale_G,
        v_scale_G=v_scale_G,
    )
    expected = paged_decode_attention(q_BHD, scaled, *tables, scale=heads.scale)
    torch.testing.assert_close(out_BHD, expected)
