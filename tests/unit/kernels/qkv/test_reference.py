"""QK-norm, rotation and the cache write, step by step."""

import torch

from headrace.kernels.norm import rms_norm
from headrace.kernels.qkv.reference import norm_rope_write
from headrace.kernels.rope import apply_rope
from tests.support.kernels_device import normal, small_rope


def test_keys_and_values_land_in_their_slots_and_padding_in_none() -> None:
    qkv, rope = normal(3, 4 * 8), small_rope(8)
    q_norm, k_norm = normal(8, seed=1), normal(8, seed=2)
    pool = torch.full((2, 1, 4, 4, 8), 7.0)
    positions, slots = torch.tensor([5, 0, 9]), torch.tensor([6, -1, 13])
    q = norm_rope_write(qkv, q_norm, k_norm, rope, positions, slots, pool, num_q_heads=2, eps=1e-6)
    heads = qkv.view(3, 4, 8)
    rows = rope.rows(positions)
    assert torch.equal(q, apply_rope(rms_norm(heads[:, :2], q_norm, eps=1e-6), *rows))
    keys = apply_rope(rms_norm(heads[:, 2:3], k_norm, eps=1e-6), *rows)
    flat = pool.flatten(2, 3)
    assert torch.equal(flat[0, 0, [6, 13]], keys[[0, 2], 0])
    assert torch.equal(flat[1, 0, [6, 13]], heads[[0, 2], 3])
    assert (flat == 7.0).sum() == 2 * 14 * 8
