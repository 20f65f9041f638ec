"""The split kernel, interpreted: which program folds a split never shows in a result."""

import dataclasses

import torch
from torch import Tensor

from headrace.kernels.attention.decode_plan import DecodeKnobs, make_decode_scratch
from headrace.kernels.attention.triton_decode import paged_decode_attention
from tests.support.attention_shapes import Heads, PagedCache, make_cache, make_queries

KNOBS = DecodeKnobs(tile_tokens=16, base_tokens=32, max_splits=8)
# Padding, one split, a group of four, two groups, sixteen splits.
LENGTHS = (0, 20, 128, 129, 512)


def _run(q_BHD: Tensor, cache: PagedCache, heads: Heads, **more: object) -> Tensor:
    arguments = {"scale": heads.scale, "knobs": KNOBS} | more
    tables = (cache.block_table_BP, cache.seq_lens_B)
    return paged_decode_attention(q_BHD, cache.pool_2GNSD, *tables, **arguments)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache(LENGTHS, heads, dtype=torch.float32)
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.float32)
    together = _run(q_BHD, cache, heads)
    for row in (1, 3, 4):
        alone = PagedCache(
            pool_2GNSD=cache.pool_2GNSD,
            block_table_BP=cache.block_table_BP[row : row + 1],
            seq_lens_B=cache.seq_lens_B[row : row + 1],
        )
        out_1HD = _run(q_BHD[row : row + 1], alone, heads)
        assert torch.equal(out_1HD[0], together[row])


def test_scratch_may_be_used_again() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache([300, 100], heads, dtype=torch.float32)
    q_BHD = make_queries(2, heads, dtype=torch.float32)
    scratch = make_decode_scratch(
        5, 304, num_kv_heads=2, queries_per_kv=2, head_dim=64, knobs=KNOBS, device="cpu"
    )
    out_BHD = torch.empty_like(q_BHD)
    first = _run(q_BHD, cache, heads, scratch=scratch, out_BHD=out_BHD).clone()
    again = _run(q_BHD, cache, heads, scratch=scratch, out_BHD=out_BHD)
    assert again is out_BHD
    assert torch.equal(again, first)


def test_the_number_of_programs_changes_no_bit() -> None:
    heads = Heads(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
    cache = make_cache(LENGTHS, heads, dtype=torch.float32)
    q_BHD = make_queries(len(LENGTHS), heads, dtype=torch.float32)
    outs = [
        _run(q_BHD, cache, heads, knobs=dataclasses.replace(KNOBS, programs_per_processor=programs))
        for programs in (1, 3, 64)
    ]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
