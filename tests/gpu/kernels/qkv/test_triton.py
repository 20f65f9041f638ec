"""QK-norm, rotation and the cache write on a device: errors, slots, padding, rows alone.

Shape letters: T = rows   Q = query heads   G = KV heads   D = head dimension   R = real rows
"""

import pytest
import torch
from torch import Tensor

from headrace.kernels.qkv.family import NORM_ROPE_WRITE
from headrace.kernels.rope import RopeTable, rope_table
from tests.support.kernels_device import normal
from tests.support.kernels_errors import assert_near

DEVICE, DTYPE = "cuda", torch.bfloat16
NUM_Q, NUM_KV, HEAD_DIM, EPS = 32, 4, 128, 1e-6
NUM_BLOCKS, BLOCK_SIZE, NUM_POSITIONS, UNTOUCHED = 80, 64, 4096, 7.0
NAMES = [variant.name for variant in NORM_ROPE_WRITE.variants if variant.name != "reference"]


def rows_of(num_rows: int, seed: int = 0) -> Tensor:
    return normal(num_rows, (NUM_Q + 2 * NUM_KV) * HEAD_DIM, seed=seed).to(DEVICE, DTYPE)


def table() -> RopeTable:
    rope = rope_table(HEAD_DIM, NUM_POSITIONS, theta=1e6)
    return RopeTable(rope.cos_PF.to(DEVICE, DTYPE), rope.sin_PF.to(DEVICE, DTYPE))


def norms() -> list[Tensor]:
    return [normal(HEAD_DIM, seed=seed).to(DEVICE, DTYPE) for seed in (1, 2)]


def places(num_rows: int) -> tuple[Tensor, Tensor]:
    """Return positions up to the last one, and slots in no order; the middle row is padding."""
    positions_T = NUM_POSITIONS - 1 - torch.arange(num_rows, dtype=torch.int32)
    generator = torch.Generator().manual_seed(3)
    slots_T = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, generator=generator)[:num_rows].int()
    slots_T[num_rows // 2 : num_rows // 2 + 1] = -1
    return positions_T.to(DEVICE), slots_T.to(DEVICE)


def write(name: str, qkv_TX: Tensor, places: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the queries and the pool, which begins with a number that no row has."""
    pool_2GNSD = torch.full(
        (2, NUM_KV, NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM), UNTOUCHED, dtype=DTYPE, device=DEVICE
    )
    q_TQD = NORM_ROPE_WRITE.variant(name).load()(
        qkv_TX, *norms(), table(), *places, pool_2GNSD, num_q_heads=NUM_Q, eps=EPS
    )
    return q_TQD, pool_2GNSD


def exact_heads(qkv_TX: Tensor, positions_T: Tensor) -> Tensor:
    """Return all heads in fp64: queries and keys normed and turned, values as they are."""
    heads_THD = qkv_TX.double().unflatten(1, (-1, HEAD_DIM))
    weights = torch.stack([weight.double() for weight in norms()])
    weight_HD = weights.repeat_interleave(torch.tensor([NUM_Q, NUM_KV], device=DEVICE), dim=0)
    turned = heads_THD[:, : NUM_Q + NUM_KV]
    turned = turned * torch.rsqrt(turned.square().mean(-1, keepdim=True) + EPS) * weight_HD
    low, high = turned.chunk(2, dim=-1)
    cos, sin = (
        part[positions_T.long()].double()[:, None] for part in (table().cos_PF, table().sin_PF)
    )
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return torch.cat((turned, heads_THD[:, NUM_Q + NUM_KV :]), dim=1)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 64, 65, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_twice_those_of_torch(name: str, num_rows: int) -> None:
    qkv_TX, (positions_T, slots_T) = rows_of(num_rows), places(num_rows)
    q_TQD, pool = write(name, qkv_TX, (positions_T, slots_T))
    plain_TQD, plain_pool = write("reference", qkv_TX, (positions_T, slots_T))
    exact_THD = exact_heads(qkv_TX, positions_T)
    assert_near(q_TQD, plain_TQD, exact_THD[:, :NUM_Q])
    is_real_T = slots_T >= 0
    slots_R = slots_T[is_real_T].long()
    keys, plain_keys = (
        each.flatten(2, 3)[0][:, slots_R].transpose(0, 1) for each in (pool, plain_pool)
    )
    assert_near(keys, plain_keys, exact_THD[is_real_T, NUM_Q : NUM_Q + NUM_KV])
    # Values are copied: not a bit may differ, and nor may it where nobody writes.
    assert torch.equal(pool[1], plain_pool[1])
    is_free = torch.ones(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool, device=DEVICE)
    is_free[slots_R] = False
    assert (pool.flatten(2, 3)[:, :, is_free] == UNTOUCHED).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_padding_write_nothing_whatever_they_hold(name: str) -> None:
    qkv_TX = torch.full_like(rows_of(5), torch.nan)
    positions_T, slots_T = places(5)
    _, pool = write(name, qkv_TX, (positions_T, torch.full_like(slots_T, -1)))
    assert (pool == UNTOUCHED).all()


@pytest.mark.parametrize("num_rows", [16, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str, num_rows: int) -> None:
    qkv_TX, (positions_T, slots_T) = rows_of(num_rows), places(num_rows)
    q_TQD, pool = write(name, qkv_TX, (positions_T, slots_T))
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    moved, moved_pool = write(name, qkv_TX[order], (positions_T[order], slots_T[order]))
    assert torch.equal(moved, q_TQD[order])
    assert torch.equal(moved_pool, pool)
    qkv_TX[1:] = rows_of(num_rows - 1, seed=9)
    replaced, replaced_pool = write(name, qkv_TX, (positions_T, slots_T))
    assert torch.equal(replaced[0], q_TQD[0])
    slot = int(slots_T[0])
    assert torch.equal(replaced_pool.flatten(2, 3)[:, :, slot], pool.flatten(2, 3)[:, :, slot])
