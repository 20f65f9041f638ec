"""Every prefill variant on a device: errors of the plain path, rows alone, awkward chunks."""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from headrace.kernels.attention.family import PREFILL_ATTENTION, PagedAttention
from tests.support.attention_shapes import (
    PREFILL_SHAPES,
    Heads,
    PagedCache,
    PrefillShape,
    attend_exactly,
    make_cache,
    make_queries,
    query_starts,
)

NAMES = [variant.name for variant in PREFILL_ATTENTION.variants]
# A whole prompt, a chunk after a history, one token, padding, a block and one past it, a tile.
QUERY_LENS = (300, 70, 1, 0, 64, 65, 128, 2)
SEQ_LENS = (300, 1000, 333, 0, 64, 200, 128, 129)
SIZES = (
    Heads(num_heads=32, num_kv_heads=4),
    Heads(num_heads=32, num_kv_heads=4, block_size=16),
    Heads(num_heads=32, num_kv_heads=4, block_size=128),
    Heads(num_heads=64, num_kv_heads=4),
    Heads(num_heads=6, num_kv_heads=1),
    Heads(num_heads=8, num_kv_heads=8, head_dim=64, block_size=32),
    Heads(num_heads=24, num_kv_heads=2, head_dim=256),
)


def _load(name: str) -> PagedAttention:
    if name == "flash_attention_4":
        pytest.importorskip("flash_attn.cute", reason="needs the package flash-attn-4")
    if name == "triton" and find_spec("triton") is None:
        pytest.skip("needs the package triton")
    return PREFILL_ATTENTION.variant(name).load()


def _attend(
    name: str, q_THD: Tensor, cache: PagedCache, query_lens: tuple[int, ...], **more: object
) -> Tensor:
    return _load(name)(
        q_THD,
        cache.pool_2GNSD,
        cache.block_table_BP,
        query_starts(query_lens, device="cuda"),
        cache.seq_lens_B,
        scale=q_THD.shape[-1] ** -0.5,
        max_query_len=max(query_lens),
        **more,
    )


def _check(
    out_THD: Tensor, q_THD: Tensor, cache: PagedCache, query_lens: tuple[int, ...], last: int = 512
) -> None:
    """Compare each chunk's ``last`` rows with fp64, by twice torch's error in q's own dtype."""
    scale = q_THD.shape[-1] ** -0.5
    stops = query_starts(query_lens)[1:].tolist()
    for row, (queries, stop) in enumerate(zip(query_lens, stops, strict=True)):
        if queries == 0:
            continue
        rows = slice(stop - min(queries, last), stop)
        exact = attend_exactly(q_THD[rows], cache, row, scale=scale)
        plain = attend_exactly(q_THD[rows], cache, row, scale=scale, dtype=q_THD.dtype)
        bound = 2 * (plain.double() - exact).abs().max() + 1e-5
        error = (out_THD[rows].double() - exact).abs()
        assert error.max() <= bound, (row, int(error.argmax()), float(error.max()), float(bound))


@pytest.mark.parametrize("heads", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_twice_those_of_torch(name: str, heads: Heads) -> None:
    cache = make_cache(SEQ_LENS, heads, dtype=torch.bfloat16, device="cuda", tail=1000.0)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.bfloat16, device="cuda")
    out_THD = torch.full_like(q_THD, torch.nan)
    assert _attend(name, q_THD, cache, QUERY_LENS, out_THD=out_THD) is out_THD
    _check(out_THD, q_THD, cache, QUERY_LENS)


@pytest.mark.parametrize("name", ["flash_attention_4", "triton"])
def test_blocks_below_a_tile_may_end_in_nan(name: str) -> None:
    cache = make_cache(SEQ_LENS, SIZES[0], dtype=torch.bfloat16, device="cuda")
    q_THD = make_queries(sum(QUERY_LENS), SIZES[0], dtype=torch.bfloat16, device="cuda")
    _check(_attend(name, q_THD, cache, QUERY_LENS), q_THD, cache, QUERY_LENS)


@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("heads", SIZES, ids=str)
def test_an_eight_bit_pool_is_widened(heads: Heads, has_scales: bool) -> None:
    cache = make_cache(SEQ_LENS, heads, dtype=torch.float8_e4m3fn, device="cuda", tail=0.0)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.bfloat16, device="cuda")
    scales = {}
    if has_scales:
        values = torch.linspace(0.25, 2.0, heads.num_kv_heads, device="cuda")
        scales = {"k_scale_G": values, "v_scale_G": values.flip(0)}
    expected, got = (
        _attend(name, q_THD, cache, QUERY_LENS, **scales) for name in ("reference", "triton")
    )
    # The pool is the same: all that differs is the rounding of weights and result to bf16.
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", PREFILL_SHAPES, ids=str)
@pytest.mark.parametrize("name", ["flash_attention_4", "triton"])
def test_real_shapes(name: str, shape: PrefillShape) -> None:
    cache = make_cache(shape.seq_lens, shape.heads, dtype=torch.bfloat16, device="cuda", tail=0.0)
    num_tokens = sum(shape.query_lens)
    q_THD = make_queries(num_tokens, shape.heads, dtype=torch.bfloat16, device="cuda")
    out_THD = _attend(name, q_THD, cache, shape.query_lens)
    _check(out_THD, q_THD, cache, shape.query_lens, last=100)


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_is_the_same_bits_whatever_stands_beside_it(name: str) -> None:
    heads = SIZES[0]
    cache = make_cache(SEQ_LENS, heads, dtype=torch.bfloat16, device="cuda", tail=0.0)
    q_THD = make_queries(sum(QUERY_LENS), heads, dtype=torch.bfloat16, device="cuda")
    together = _attend(name, q_THD, cache, QUERY_LENS)
    starts = query_starts(QUERY_LENS).tolist()
    for order in ([0], [1, 4], [7, 6, 5, 2, 1]):
        rows = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in order]).cuda()
        picked = PagedCache(
            pool_2GNSD=cache.pool_2GNSD,
            block_table_BP=cache.block_table_BP[order],
            seq_lens_B=cache.seq_lens_B[order],
        )
        query_lens = tuple(QUERY_LENS[row] for row in order)
        assert torch.equal(_attend(name, q_THD[rows], picked, query_lens), together[rows])
