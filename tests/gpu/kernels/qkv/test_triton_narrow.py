"""The fused write into an 8-bit pool on a device: nearest rounding, saturation, NaN kept."""

import pytest
import torch

from headrace.kernels.qkv import reference, triton
from tests.support.kernels_device import normal, small_rope


@pytest.mark.parametrize("num_rows", [1, 64, 65, 300])
@pytest.mark.parametrize("has_scales", [False, True])
def test_an_eight_bit_cache_is_the_references(num_rows: int, has_scales: bool) -> None:
    num_q, num_kv, head_dim = 32, 4, 128
    qkv = normal(num_rows, (num_q + 2 * num_kv) * head_dim).cuda().bfloat16()
    qkv[0, -1], qkv[0, -2], qkv[0, -3] = 1e6, -1e6, torch.nan
    norms = [normal(head_dim, seed=seed).cuda().bfloat16() for seed in (1, 2)]
    rope = small_rope(head_dim)
    rope = type(rope)(rope.cos_PF.cuda().bfloat16(), rope.sin_PF.cuda().bfloat16())
    positions = (torch.arange(num_rows, dtype=torch.int32) % 64).cuda()
    slots = torch.randperm(512, generator=torch.Generator().manual_seed(3))[:num_rows].int().cuda()
    slots[num_rows // 2 + 1 :: 7] = -1
    scales = {}
    if has_scales:
        values = torch.linspace(0.25, 2.0, num_kv, device="cuda")
        scales = {"k_scale_G": values, "v_scale_G": values.flip(0)}
    shape = (2, num_kv, 8, 64, head_dim)
    pools = [torch.zeros(shape, device="cuda").to(torch.float8_e4m3fn) for _ in range(2)]
    for room, pool in zip((reference, triton), pools, strict=True):
        room.norm_rope_write(
            qkv, *norms, rope, positions, slots, pool, num_q_heads=num_q, eps=1e-6, **scales
        )
    expected, got = (pool.float() for pool in pools)
    # A step of e4m3 is an eighth at most; bf16 rounds differently here and there before it.
    torch.testing.assert_close(got, expected, rtol=0.13, atol=4e-3, equal_nan=True)
    last = got[1, -1].flatten(0, 1)[int(slots[0])]
    assert (last[-1], last[-2]) == (448.0, -448.0)
    assert last[-3].isnan()
