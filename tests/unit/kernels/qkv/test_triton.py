"""The fused kernel, in the interpreter, against the plain steps."""

import pytest
import torch

from headrace.kernels.qkv import reference, triton
from tests.support.kernels_device import normal, small_rope


@pytest.mark.parametrize("num_rows", [0, 1, 5, 70])
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(6, 2, 32), (3, 1, 16), (8, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_queries_and_cache_are_the_references(
    num_rows: int, num_q: int, num_kv: int, head_dim: int, dtype: torch.dtype
) -> None:
    qkv = normal(num_rows, (num_q + 2 * num_kv) * head_dim).to(dtype)
    norms = [normal(head_dim, seed=seed).to(dtype) for seed in (1, 2)]
    rope = small_rope(head_dim)
    rope = type(rope)(rope.cos_PF.to(dtype), rope.sin_PF.to(dtype))
    positions = torch.arange(num_rows, dtype=torch.int32) % 64
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(3))[:num_rows].int()
    slots[num_rows // 2 : num_rows // 2 + 1] = -1
    pools = [torch.full((2, num_kv, 8, 16, head_dim), 7.0, dtype=dtype) for _ in range(2)]
    results = [
        room.norm_rope_write(qkv, *norms, rope, positions, slots, pool, num_q_heads=num_q, eps=1e-6)
        for room, pool in zip((reference, triton), pools, strict=True)
    ]
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype is torch.float16 else {}
    torch.testing.assert_close(*results, **tolerance)
    torch.testing.assert_close(*pools, **tolerance)


@pytest.mark.parametrize("has_scales", [False, True])
def test_an_eight_bit_cache_is_the_references_and_saturates(has_scales: bool) -> None:
    num_q, num_kv, head_dim, num_rows = 6, 2, 32, 5
    qkv = normal(num_rows, (num_q + 2 * num_kv) * head_dim)
    qkv[1, -1], qkv[2, -2] = 1e6, -1e6
    norms = [normal(head_dim, seed=seed) for seed in (1, 2)]
    positions = torch.arange(num_rows, dtype=torch.int32)
    slots = torch.tensor([3, 40, 7, 100, -1], dtype=torch.int32)
    scales = {}
    if has_scales:
        scales = {"k_scale_G": torch.tensor([0.01, 0.5]), "v_scale_G": torch.tensor([2.0, 0.02])}
    pools = [torch.zeros(2, num_kv, 8, 16, head_dim).to(torch.float8_e4m3fn) for _ in range(2)]
    for room, pool in zip((reference, triton), pools, strict=True):
        room.norm_rope_write(
            qkv,
            *norms,
            small_rope(head_dim),
            positions,
            slots,
            pool,
            num_q_heads=num_q,
            eps=1e-6,
            **scales,
        )
    expected, got = (pool.float() for pool in pools)
    # The interpreter forgets the carry where rounding reaches a power of two, and makes half of it.
    is_power = torch.frexp(expected.abs()).mantissa == 0.5
    got = torch.where(is_power & (got == expected / 2), expected, got)
    torch.testing.assert_close(got, expected, rtol=0.07, atol=2e-3)
    values = got[1, 1].flatten(0, 1)
    assert (values[40, -1], values[7, -2]) == (448.0, -448.0)
    assert (got != 0).any(-1).sum() == 2 * num_kv * 4


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
@pytest.mark.parametrize("positions", [torch.int32, torch.int64])
def test_padding_writes_nothing_whatever_it_holds(positions: torch.dtype) -> None:
    qkv, rope, weights = normal(3, 4 * 8), small_rope(8), [normal(8, seed=s) for s in (1, 2)]
    places = torch.tensor([63, 0, 0], dtype=positions), torch.tensor([5, -1, -1])
    clean, garbage = (torch.full((2, 1, 4, 4, 8), 7.0) for _ in range(2))
    triton.norm_rope_write(qkv, *weights, rope, *places, clean, num_q_heads=2, eps=1e-6)
    qkv[1:] = torch.nan
    q = triton.norm_rope_write(qkv, *weights, rope, *places, garbage, num_q_heads=2, eps=1e-6)
    assert torch.equal(garbage, clean)
    assert (clean != 7.0).sum() == 2 * 8
    assert q[0].isfinite().all()
