"""Cases of ``norm_rope_write``: the rows of decode steps and of a prompt, to scattered slots.

Shape letters: T = rows   X = (query heads + 2 * KV heads) * D   D = head dimension
    G = KV heads   N = blocks of the pool   S = token slots of a block
"""

from __future__ import annotations

from functools import partial

from headrace.bench.device.case import Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.shapes import MODELS, STEP_TOKENS, ModelShape
from headrace.kernels.costs.attention import AttentionSizes
from headrace.kernels.costs.qkv import norm_rope_write_bytes
from headrace.kernels.qkv.family import NORM_ROPE_WRITE
from headrace.kernels.rope import RopeTable

BLOCK_SIZE = 64
NUM_POSITIONS = 8192
EPS = 1e-6


def make_case(shape: ModelShape, num_tokens: int, *, num_positions: int = NUM_POSITIONS) -> Case:
    """Norm, rotate and write ``num_tokens`` rows of a model."""
    sizes = AttentionSizes(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim
    )
    return Case(
        name=f"{shape.name}/t{num_tokens}",
        sizes=shape.site_sizes(block_size=BLOCK_SIZE, num_tokens=num_tokens),
        num_bytes=norm_rope_write_bytes(num_tokens, sizes),
        num_flops=0,
        build=partial(_build, sizes, num_tokens, num_positions=num_positions),
    )


def _build(sizes: AttentionSizes, num_tokens: int, draws: Draws, *, num_positions: int) -> Inputs:
    num_heads, num_kv_heads, head_dim = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    # Any table does: what a rotation costs does not depend on its angles.
    rope = RopeTable(*(draws.normal(num_positions, head_dim // 2) for _ in range(2)))
    return Inputs(
        args=(
            draws.normal(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim),
            draws.normal(head_dim),
            draws.normal(head_dim),
            rope,
            draws.integers(num_tokens, high=num_positions),
            draws.permutation(num_blocks * BLOCK_SIZE)[:num_tokens].contiguous(),
            draws.normal(2, num_kv_heads, num_blocks, BLOCK_SIZE, head_dim),
        ),
        kwargs={"num_q_heads": num_heads, "eps": EPS},
    )


CASES = FamilyCases(
    family=NORM_ROPE_WRITE,
    cases=tuple(make_case(shape, tokens) for shape in MODELS for tokens in STEP_TOKENS),
    uncaptured=frozenset({"reference"}),
)
