import pytest
import torch

from headrace.core.layouts import CacheLayout, KvSchema
from headrace.kernels.attention import view_kv_pool, write_kv
from tests.support.kernels_checks import assert_bits_equal, random


def layout(dtype: str) -> CacheLayout:
    schema = KvSchema(num_kv_heads=8, head_dim=4, dtype=dtype)
    return CacheLayout(layers=(schema,) * 3, first_head=2, num_heads=3, num_blocks=5, block_size=16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views_are_where_the_layout_says(dtype: str) -> None:
    place = layout(dtype)
    region = torch.zeros(place.num_bytes, dtype=torch.uint8)
    for layer, kv, head, block in [(0, 0, 2, 0), (1, 1, 3, 4), (2, 1, 4, 4), (2, 0, 2, 3)]:
        region.zero_()
        start = place.atom_offset(layer, kv, head, block)
        region[start : start + place.atom_bytes(layer)] = 1
        for other in range(3):
            pool = view_kv_pool(region, place, layer=other)
            assert pool.dtype == getattr(torch, dtype)
            touched = pool.contiguous().view(torch.uint8).view(*pool.shape[:4], -1)
            expected = torch.zeros_like(touched)
            if other == layer:
                expected[kv, head - 2, block] = 1
            assert torch.equal(touched, expected)


def test_views_share_the_regions_memory() -> None:
    place = layout("float32")
    region = torch.zeros(place.num_bytes, dtype=torch.uint8)
    view_kv_pool(region, place, layer=1).fill_(1.0)
    start, size = place.layer_offset(1), place.layer_bytes(1)
    assert (region[start : start + size].view(torch.float32) == 1.0).all()
    assert not region[:start].any()
    assert not region[start + size :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_land_in_their_slots_and_nowhere_else(dtype: torch.dtype) -> None:
    pool = torch.zeros(2, 3, 4, 16, 8, dtype=dtype)
    keys, values = random(5, 3, 8, dtype=dtype), random(5, 3, 8, seed=1, dtype=dtype)
    slots = torch.tensor([63, 0, 17, 16, 40])
    write_kv(pool, keys, values, slots)
    flat = pool.flatten(2, 3)
    assert_bits_equal(flat[0][:, slots], keys.transpose(0, 1))
    assert_bits_equal(flat[1][:, slots], values.transpose(0, 1))
    flat[:, :, slots] = 0
    assert not pool.any()


def test_no_tokens_write_nothing() -> None:
    pool = torch.zeros(2, 3, 4, 16, 8)
    write_kv(pool, torch.zeros(0, 3, 8), torch.zeros(0, 3, 8), torch.zeros(0, dtype=torch.int64))
    assert not pool.any()
