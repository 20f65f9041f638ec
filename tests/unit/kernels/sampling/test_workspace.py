"""Sizes of the passes."""

from __future__ import annotations

import pytest

from headrace.kernels.sampling.workspace import SamplingKnobs, Workspace


@pytest.mark.parametrize(("vocab_size", "num_chunks"), [(1, 1), (64, 1), (65, 2), (1000, 16)])
def test_chunks_cover_the_vocabulary(vocab_size: int, num_chunks: int) -> None:
    knobs = SamplingKnobs(chunk=64, sub_block=16)
    work = Workspace.allocate(3, vocab_size=vocab_size, knobs=knobs, device="cpu")
    assert knobs.num_chunks(vocab_size) == num_chunks
    assert work.chunk_floats_BC.shape[1:] == (3, num_chunks)
    assert work.sub_max_BU.shape == (3, num_chunks * 4)


@pytest.mark.parametrize("vocab_size", [1, 255, 257, 1000, 151_936, 1 << 20])
def test_wide_count_is_some_of_the_sub_blocks(vocab_size: int) -> None:
    knobs = SamplingKnobs()
    assert 1 <= knobs.wide_count(vocab_size) <= knobs.num_sub_blocks(vocab_size)


def test_wide_count_leaves_room_in_the_list() -> None:
    knobs = SamplingKnobs()
    assert 530 <= knobs.wide_count(151_936) <= 540  # 594 sub-blocks, some 1365 candidates
