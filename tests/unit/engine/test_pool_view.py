"""Views share the region's bytes; digests do not depend on how tokens are put into blocks."""

from __future__ import annotations

import pytest
import torch

from headrace.core.layouts import CacheLayout, KvSchema
from headrace.engine.pool_view import copy_block, digest_kv, view_pool


def make(block_size: int, num_blocks: int) -> CacheLayout:
    return CacheLayout(
        layers=(
            KvSchema(num_kv_heads=4, head_dim=8, dtype="bfloat16"),
            KvSchema(num_kv_heads=4, head_dim=4, dtype="float32"),
        ),
        first_head=2,
        num_heads=2,
        num_blocks=num_blocks,
        block_size=block_size,
    )


def test_an_atom_lies_where_the_layout_says() -> None:
    layout = make(16, 3)
    region = bytearray(layout.num_bytes)
    view_pool(memoryview(region), layout)[1][1, 1, 2] = 1.0
    start = layout.atom_offset(1, 1, 3, 2)
    atom = torch.frombuffer(region, dtype=torch.uint8)[start : start + layout.atom_bytes(1)]
    assert (atom.view(torch.float32) == 1.0).all()
    assert sum(byte != 0 for byte in region) == sum(byte != 0 for byte in atom.tolist())


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 50, 64])
def test_digests_are_equal_for_equal_tokens_in_other_blocks(num_tokens: int) -> None:
    digests = []
    for block_size, blocks in ((16, [5, 1, 3, 0]), (32, [2, 0]), (64, [1])):
        layout = make(block_size, 8)
        caches = view_pool(memoryview(bytearray(layout.num_bytes)), layout)
        for cache in caches:
            values = torch.arange(2 * 2 * 64 * cache.shape[-1]).view(2, 2, 64, -1) % 251
            cache[:, :, blocks] = values.view(2, 2, len(blocks), block_size, -1).to(cache.dtype)
        digests.append(digest_kv(caches, blocks, num_tokens))
    assert digests[0] == digests[1] == digests[2]
    assert [len(layer) for layer in digests[0]] == [-(-num_tokens // 16)] * 2


def test_a_changed_token_changes_its_run_only() -> None:
    layout = make(16, 2)
    caches = view_pool(memoryview(bytearray(layout.num_bytes)), layout)
    before = digest_kv(caches, [0, 1], 32)
    caches[0][0, 0, 1, 3, 0] = 1.0
    after = digest_kv(caches, [0, 1], 32)
    assert [
        [a == b for a, b in zip(x, y, strict=True)] for x, y in zip(before, after, strict=True)
    ] == [
        [True, False],
        [True, True],
    ]


def test_copies_reach_every_layer_and_head() -> None:
    layout = make(16, 2)
    caches = view_pool(memoryview(bytearray(layout.num_bytes)), layout)
    for cache in caches:
        cache[:, :, 0] = 3.0
    copy_block(caches, 0, 1)
    assert all((cache[:, :, 1] == 3.0).all() for cache in caches)
