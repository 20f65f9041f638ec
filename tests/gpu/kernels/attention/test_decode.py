"""Every decode variant on a device: errors of the plain path, rows alone, graphs, awkward rows."""

import random

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention.decode_plan import DecodeScratch, decode_knobs, make_decode_scratch
from headrace.kernels.attention.family import DECODE_ATTENTION, PagedAttention
from tests.support.attention_shapes import (
    DECODE_SHAPES,
    DecodeShape,
    Heads,
    PagedCache,
    attend_exactly,
    make_cache,
    make_queries,
)

NAMES = [variant.name for variant in DECODE_ATTENTION.variants]
FAST = [name for name in NAMES if name.endswith("triton")]
# Nothing, one, a block and one past it, a split, a group of them, the two doublings.
LENGTHS = (0, 1, 63, 64, 65, 256, 257, 2048, 2049, 4096, 4097, 32768, 32769)
SIZES = (
    Heads(num_heads=32, num_kv_heads=4),
    Heads(num_heads=64, num_kv_heads=4),
    Heads(num_heads=16, num_kv_heads=1, block_size=16),
    Heads(num_heads=8, num_kv_heads=8, head_dim=64, block_size=128),
    Heads(num_heads=24, num_kv_heads=2, head_dim=256, block_size=32),
)


def _attend(name: str, q_BHD: Tensor, cache: PagedCache, **more: object) -> Tensor:
    attend: PagedAttention = DECODE_ATTENTION.variant(name).load()
    tables = (cache.block_table_BP, cache.seq_lens_B)
    return attend(q_BHD, cache.pool_2GNSD, *tables, scale=q_BHD.shape[-1] ** -0.5, **more)


def _check(out_BHD: Tensor, q_BHD: Tensor, cache: PagedCache, rows: list[int]) -> None:
    """Compare with fp64; twice the error of torch in q's own dtype is allowed, plus 1e-5."""
    scale = q_BHD.shape[-1] ** -0.5
    for row in rows:
        q_1HD = q_BHD[row : row + 1]
        exact = attend_exactly(q_1HD, cache, row, scale=scale)
        plain = attend_exactly(q_1HD, cache, row, scale=scale, dtype=q_BHD.dtype)
        bound = 2 * (plain.double() - exact).abs().max() + 1e-5
        error = (out_BHD[row].double() - exact[0]).abs()
        assert error.max() <= bound, (row, int(error.argmax()), float(error.max()), float(bound))


@pytest.mark.parametrize("heads", SIZES, ids=str)
@pytest.mark.parametrize("name", FAST)
def test_errors_stay_within_twice_those_of_torch(name: str, heads: Heads) -> None:
    cache = make_cache(LENGTHS, heads, dtype=torch.bfloat16, device="cuda")
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.bfloat16, device="cuda")
    out_BHD = _attend(name, q_BHD, cache)
    _check(out_BHD, q_BHD, cache, list(range(len(LENGTHS))))
    assert not out_BHD[0].any()


@pytest.mark.parametrize("shape", DECODE_SHAPES, ids=str)
def test_real_shapes(shape: DecodeShape) -> None:
    lengths = [shape.num_tokens] * shape.batch
    cache = make_cache(lengths, shape.heads, dtype=torch.bfloat16, device="cuda")
    q_BHD = make_queries(shape.batch, shape.heads, dtype=torch.bfloat16, device="cuda")
    for name in FAST:
        _check(_attend(name, q_BHD, cache), q_BHD, cache, sorted({0, shape.batch - 1}))


@pytest.mark.parametrize("name", FAST)
def test_eight_bit_pools_agree_with_the_reference(name: str) -> None:
    heads = SIZES[0]
    lengths = (0, 1, 64, 65, 1000, 5000)
    cache = make_cache(lengths, heads, dtype=torch.float8_e4m3fn, device="cuda")
    q_BHD = make_queries(len(lengths), heads, dtype=torch.bfloat16, device="cuda")
    scales = {
        "k_scale_G": torch.tensor([0.5, 1.0, 2.0, 0.25], device="cuda"),
        "v_scale_G": torch.tensor([3.0, 0.25, 1.0, 2.0], device="cuda"),
    }
    out_BHD = _attend(name, q_BHD, cache, **scales)
    torch.testing.assert_close(
        out_BHD, _attend("reference", q_BHD, cache, **scales), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("name", FAST)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str) -> None:
    heads = SIZES[0]
    cache = make_cache(LENGTHS, heads, dtype=torch.bfloat16, device="cuda")
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.bfloat16, device="cuda")
    # Settings follow from the padded size, and hold for whoever is in it.
    knobs = decode_knobs(
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        kv_bytes=2,
        num_rows=len(LENGTHS),
    )
    together = _attend(name, q_BHD, cache, knobs=knobs)
    for seed in range(20):
        order = random.Random(seed).sample(range(len(LENGTHS)), k=seed % len(LENGTHS) + 1)
        picked = PagedCache(
            pool_2GNSD=cache.pool_2GNSD,
            block_table_BP=cache.block_table_BP[order],
            seq_lens_B=cache.seq_lens_B[order],
        )
        alone = _attend(name, q_BHD[order], picked, knobs=knobs)
        assert torch.equal(alone, together[order])


def _scratch(batch: int, cache: PagedCache, heads: Heads) -> DecodeScratch:
    return make_decode_scratch(
        batch,
        cache.block_table_BP.shape[1] * heads.block_size,
        num_kv_heads=heads.num_kv_heads,
        queries_per_kv=heads.num_heads // heads.num_kv_heads,
        head_dim=heads.head_dim,
        knobs=decode_knobs(num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim, kv_bytes=2),
        device="cuda",
    )


@pytest.mark.parametrize("name", FAST)
def test_one_graph_serves_every_length_and_many_replays(name: str) -> None:
    heads = SIZES[0]
    batch = len(LENGTHS)
    cache = make_cache([32769] + [4097] * (batch - 1), heads, dtype=torch.bfloat16, device="cuda")
    q_BHD = make_queries(batch, heads, dtype=torch.bfloat16, device="cuda")
    buffers = {"scratch": _scratch(batch, cache, heads), "out_BHD": torch.empty_like(q_BHD)}
    _attend(name, q_BHD, cache, **buffers)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _attend(name, q_BHD, cache, **buffers)
    for seed in range(30):
        random_source = random.Random(seed)
        lengths = [random_source.randint(0, 32769)]
        lengths += [random_source.randint(0, 4097) for _ in range(batch - 1)]
        cache.seq_lens_B.copy_(torch.tensor(lengths, dtype=torch.int32))
        buffers["out_BHD"].fill_(torch.nan)
        graph.replay()
        # Eager, with fresh scratch: a part read too early would differ from this now and then.
        assert torch.equal(buffers["out_BHD"], _attend(name, q_BHD, cache))


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_and_one_of_padding_are_fine(name: str) -> None:
    heads = SIZES[0]
    empty = make_cache([], heads, dtype=torch.bfloat16, device="cuda")
    q_0HD = make_queries(0, heads, dtype=torch.bfloat16, device="cuda")
    assert _attend(name, q_0HD, empty).shape[0] == 0
    padding = make_cache([0] * 5, heads, dtype=torch.bfloat16, device="cuda")
    q_BHD = make_queries(5, heads, dtype=torch.bfloat16, device="cuda")
    assert not _attend(name, q_BHD, padding).any()
