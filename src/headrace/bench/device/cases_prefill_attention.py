"""Cases of ``prefill_attention``: a whole prompt, and a chunk on top of a paged history.

The library that users would run instead is a variant of the family, so it needs no baseline.

Shape letters: T = query tokens   H = query heads   G = KV heads   D = head dimension
    B = sequences, here one   N = blocks of the pool   S = token slots of a block
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from headrace.bench.device.case import Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.kernels.attention.family import PREFILL_ATTENTION
from headrace.kernels.attention.prefill_reference import MAX_SCORES
from headrace.kernels.costs.attention import AttentionSizes, prefill_bytes, prefill_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShape:
    """A chunk of one sequence in one layer.

    Attributes:
        num_new: Tokens of the chunk.
        num_cached: Tokens before it.
        num_heads: Query heads.
        num_kv_heads: KV heads.
        block_size: Tokens of a block.
        head_dim: Width of a head.
    """

    num_new: int
    num_cached: int
    num_heads: int
    num_kv_heads: int
    block_size: int
    head_dim: int = 128


def make_case(shape: PrefillShape) -> Case:
    """Attend with every token of the chunk."""
    sizes = AttentionSizes(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim
    )
    lengths = ([shape.num_new], [shape.num_cached + shape.num_new])
    return Case(
        name=f"{shape.num_new}on{shape.num_cached}/h{shape.num_heads}-{shape.num_kv_heads}"
        f"/block{shape.block_size}",
        sizes={
            "head_dim": shape.head_dim,
            "queries_per_kv": shape.num_heads // shape.num_kv_heads,
            "block_size": shape.block_size,
            "num_tokens": shape.num_new,
        },
        num_bytes=prefill_bytes(*lengths, sizes),
        num_flops=prefill_flops(*lengths, sizes),
        build=partial(_build, shape),
        reference_bytes=_reference_bytes(shape),
    )


def _build(shape: PrefillShape, draws: Draws) -> Inputs:
    num_tokens = shape.num_cached + shape.num_new
    num_blocks = -(-num_tokens // shape.block_size)
    q_THD = draws.normal(shape.num_new, shape.num_heads, shape.head_dim)
    lengths = partial(torch.tensor, dtype=torch.int32, device=draws.device)
    return Inputs(
        args=(
            q_THD,
            draws.normal(2, shape.num_kv_heads, num_blocks, shape.block_size, shape.head_dim),
            draws.permutation(num_blocks).view(1, num_blocks),
            lengths([0, shape.num_new]),
            lengths([num_tokens]),
        ),
        kwargs={
            "scale": shape.head_dim**-0.5,
            "max_query_len": shape.num_new,
            "out_THD": torch.empty_like(q_THD),
        },
    )


def _reference_bytes(shape: PrefillShape) -> float:
    """Keys and values as bf16 and fp32, and one piece of scores four times over."""
    num_tokens = shape.num_cached + shape.num_new
    scores = min(MAX_SCORES, shape.num_heads * shape.num_new * num_tokens)
    return 16.0 * scores + 12.0 * num_tokens * shape.num_kv_heads * shape.head_dim


# New tokens, cached tokens, query heads, KV heads: one of four ranks of 64 heads, and all of 32.
SHAPES = (
    (6000, 0, 16, 1),
    (2048, 4096, 16, 1),
    (6000, 0, 32, 4),
    (2048, 4096, 32, 4),
)
BLOCK_SIZES = (64, 128)

CASES = FamilyCases(
    family=PREFILL_ATTENTION,
    cases=tuple(
        make_case(
            PrefillShape(
                num_new=new,
                num_cached=cached,
                num_heads=heads,
                num_kv_heads=kv_heads,
                block_size=block_size,
            )
        )
        for new, cached, heads, kv_heads in SHAPES
        for block_size in BLOCK_SIZES
    ),
    compared_with=("flash_attention_4", "reference"),
    uncaptured=frozenset({"reference"}),
)
