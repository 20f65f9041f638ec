"""The Triton decode kernels, interpreted, are the textbook's attention for every row alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention import triton_decode
from headrace.kernels.attention.decode_plan import DecodeKnobs
from headrace.kernels.attention.decode_reference import paged_decode_attention as reference
from tests.support.attention_shapes import (
    Heads,
    PagedCache,
    attend_exactly,
    make_cache,
    make_queries,
)

# Small enough that a few hundred tokens reach every level: 32-token splits up to 128 tokens, then
# 64, then 128 from 1,025 on.
KNOBS = DecodeKnobs(tile_tokens=16, base_tokens=32, max_splits=8)
# None, one, a block and one past it, a split and one past it, several.
LENGTHS = (0, 1, 16, 17, 32, 33, 128, 129, 300)
VARIANTS = (
    triton_decode.paged_decode_attention,
    triton_decode.paged_decode_attention_few_rows,
)
Attend = Callable[..., Tensor]


def _run(attend: Attend, q_BHD: Tensor, cache: PagedCache, heads: Heads, **more: object) -> Tensor:
    arguments = {"scale": heads.scale, "knobs": KNOBS} | more
    return attend(q_BHD, cache.pool_2GNSD, cache.block_table_BP, cache.seq_lens_B, **arguments)


def _check(out_BHD: Tensor, q_BHD: Tensor, cache: PagedCache, heads: Heads, atol: float) -> None:
    for row in range(len(q_BHD)):
        exact = attend_exactly(q_BHD[row : row + 1], cache, row, scale=heads.scale)[0]
        torch.testing.assert_close(out_BHD[row].double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize("attend", VARIANTS)
@pytest.mark.parametrize(("num_heads", "block_size"), [(2, 16), (10, 32), (40, 16)])
def test_rows_equal_the_textbook(attend: Attend, num_heads: int, block_size: int) -> None:
    heads = Heads(num_heads=num_heads, num_kv_heads=2, head_dim=64, block_size=block_size)
    cache = make_cache(LENGTHS, heads, dtype=torch.float32, width=20)
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.float32)
    out_BHD = _run(attend, q_BHD, cache, heads)
    _check(out_BHD, q_BHD, cache, heads, 5e-6)
    assert not out_BHD[0].any()


@pytest.mark.parametrize(("head_dim", "block_size", "tile"), [(128, 16, 64), (256, 128, 32)])
def test_a_tile_may_span_blocks_or_a_part_of_one(head_dim: int, block_size: int, tile: int) -> None:
    heads = Heads(num_heads=4, num_kv_heads=1, head_dim=head_dim, block_size=block_size)
    cache = make_cache([64, 65, 200], heads, dtype=torch.float32)
    q_BHD = make_queries(3, heads, dtype=torch.float32)
    knobs = DecodeKnobs(tile_tokens=tile, base_tokens=64)
    for attend in VARIANTS:
        _check(_run(attend, q_BHD, cache, heads, knobs=knobs), q_BHD, cache, heads, 5e-6)


def test_half_precision_keeps_sums_in_single() -> None:
    heads = Heads(num_heads=16, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([5, 90, 140], heads, dtype=torch.float16)
    q_BHD = make_queries(3, heads, dtype=torch.float16)
    for attend in VARIANTS:
        _check(_run(attend, q_BHD, cache, heads), q_BHD, cache, heads, 2e-3)


@pytest.mark.parametrize("attend", VARIANTS)
def test_eight_bit_keys_and_values_are_scaled_by_head(attend: Attend) -> None:
    heads = Heads(num_heads=8, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([33, 70], heads, dtype=torch.float8_e4m3fn)
    q_BHD = make_queries(2, heads, dtype=torch.float32)
    scales = {"k_scale_G": torch.tensor([0.5, 2.0]), "v_scale_G": torch.tensor([3.0, 0.25])}
    out_BHD = _run(attend, q_BHD, cache, heads, **scales)
    tables = (cache.block_table_BP, cache.seq_lens_B)
    expected = reference(q_BHD, cache.pool_2GNSD, *tables, scale=heads.scale, **scales)
    torch.testing.assert_close(out_BHD, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("attend", VARIANTS)
def test_an_empty_batch_and_one_of_padding_are_fine(attend: Attend) -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    empty = make_cache([], heads, dtype=torch.float32)
    assert _run(attend, make_queries(0, heads, dtype=torch.float32), empty, heads).shape[0] == 0
    padding = make_cache([0, 0, 0], heads, dtype=torch.float32)
    assert not _run(attend, make_queries(3, heads, dtype=torch.float32), padding, heads).any()
