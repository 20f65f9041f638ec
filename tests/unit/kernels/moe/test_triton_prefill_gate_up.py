"""Tiles of tokens are found in a routing: each place once, whatever experts have."""

import pytest
import torch
import triton
import triton.language as tl

from headrace.kernels.moe.triton_prefill_gate_up import find_tile


@triton.jit
def _tiles_kernel(starts_ptr, out_ptr, E: tl.constexpr, E_PAD: tl.constexpr, M: tl.constexpr):
    expert, first, stop = find_tile(starts_ptr, tl.program_id(0), E, E_PAD, M)
    tl.store(out_ptr + tl.program_id(0) * 3, expert)
    tl.store(out_ptr + tl.program_id(0) * 3 + 1, first)
    tl.store(out_ptr + tl.program_id(0) * 3 + 2, stop)


@pytest.mark.parametrize("counts", [[0, 0, 0], [4, 0, 5], [0, 9, 1], [3, 3, 3]], ids=str)
def test_tiles_cover_every_experts_places_once_and_then_end(counts: list[int]) -> None:
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32)
    tiles = torch.zeros((8, 3), dtype=torch.int32)
    _tiles_kernel[(8,)](starts, tiles, E=3, E_PAD=4, M=4)
    covered = [
        (expert, place)
        for expert, first, stop in tiles.tolist()
        if expert < 3
        for place in range(first, min(first + 4, stop))
    ]
    begin = starts.tolist()
    assert covered == [(e, p) for e in range(3) for p in range(begin[e], begin[e + 1])]
