"""Small cache layouts, and regions whose every byte says what it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.core.layouts import CacheLayout, KvSchema
from headrace.core.sharding import split_range

Bytes = npt.NDArray[np.uint8]


def make_schema(heads: int = 4, head_dim: int = 8, dtype: str = "bfloat16") -> KvSchema:
    """Return a schema that is small unless told otherwise."""
    return KvSchema(num_kv_heads=heads, head_dim=head_dim, dtype=dtype)


def split_layouts(
    ranks: int,
    *,
    schemas: Sequence[KvSchema] = (make_schema(),) * 2,
    num_blocks: int = 16,
    block_size: int = 16,
) -> list[CacheLayout]:
    """Return one layout per rank of a tensor parallel group."""
    layouts = []
    for rank in range(ranks):
        heads = split_range(schemas[0].num_kv_heads, ranks, rank)
        layouts.append(
            CacheLayout(
                layers=tuple(schemas),
                first_head=heads.start,
                num_heads=len(heads),
                num_blocks=num_blocks,
                block_size=block_size,
            )
        )
    return layouts


class TruthfulKv:
    """Random KV of one sequence, and where each layout must hold it, one token at a time.

    The slow and obvious counterpart of a plan: it uses ``CacheLayout.atom_offset`` only.
    """

    def __init__(self, schemas: Sequence[KvSchema], num_tokens: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.num_tokens = num_tokens
        self.layers = [
            rng.integers(1, 256, (2, s.num_kv_heads, num_tokens, s.token_bytes), np.uint8)
            for s in schemas
        ]

    def fill(
        self, region: Bytes, layout: CacheLayout, blocks: Sequence[int], positions: range
    ) -> None:
        """Write the tokens at ``positions`` where ``layout`` keeps them."""
        for layer, data in enumerate(self.layers):
            size = layout.layers[layer].token_bytes
            for kv in (0, 1):
                for head in layout.heads:
                    for position in positions:
                        index, within = divmod(position, layout.block_size)
                        at = layout.atom_offset(layer, kv, head, blocks[index]) + within * size
                        region[at : at + size] = data[kv, head, position]
