"""Cases of ``decode_attention``: full batches, long contexts and one rank's share of the heads.

Shape letters: B = rows   H = query heads   G = KV heads   D = head dimension
    N = blocks of the pool   S = token slots of a block   P = blocks of a row
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from headrace.bench.device.case import Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.draws import Draws
from headrace.bench.device.timing import Call
from headrace.kernels.attention.decode_plan import decode_knobs, make_decode_scratch
from headrace.kernels.attention.family import DECODE_ATTENTION, decline_prefill_flash4
from headrace.kernels.costs.attention import AttentionSizes, decode_bytes, decode_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """A decode step of one layer in which all rows are equally long.

    Attributes:
        num_rows: Sequences.
        num_tokens: Tokens of each.
        num_heads: Query heads.
        num_kv_heads: KV heads.
        block_size: Tokens of a block.
        head_dim: Width of a head.
    """

    num_rows: int
    num_tokens: int
    num_heads: int
    num_kv_heads: int
    block_size: int
    head_dim: int = 128

    @property
    def blocks_per_row(self) -> int:
        """Blocks that hold a row's tokens."""
        return -(-self.num_tokens // self.block_size)


def make_case(shape: DecodeShape) -> Case:
    """Attend with one query a row."""
    sizes = AttentionSizes(
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim
    )
    seq_lens = [shape.num_tokens] * shape.num_rows
    return Case(
        name=f"{shape.num_rows}x{shape.num_tokens}/h{shape.num_heads}-{shape.num_kv_heads}"
        f"/block{shape.block_size}",
        sizes={
            "head_dim": shape.head_dim,
            "queries_per_kv": shape.num_heads // shape.num_kv_heads,
            "block_size": shape.block_size,
            "num_tokens": shape.num_rows,
        },
        num_bytes=decode_bytes(seq_lens, sizes),
        num_flops=decode_flops(seq_lens, sizes),
        build=partial(_build, shape),
        reference_bytes=_reference_bytes(shape),
    )


def _build(shape: DecodeShape, draws: Draws) -> Inputs:
    num_blocks = shape.num_rows * shape.blocks_per_row
    q_BHD = draws.normal(shape.num_rows, shape.num_heads, shape.head_dim)
    queries_per_kv = shape.num_heads // shape.num_kv_heads
    heads = {"num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    scratch = make_decode_scratch(
        shape.num_rows,
        shape.blocks_per_row * shape.block_size,
        queries_per_kv=queries_per_kv,
        knobs=decode_knobs(
            **heads,
            queries_per_kv=queries_per_kv,
            kv_bytes=q_BHD.element_size(),
            num_rows=shape.num_rows,
        ),
        device=draws.device,
        **heads,
    )
    return Inputs(
        args=(
            q_BHD,
            draws.normal(2, shape.num_kv_heads, num_blocks, shape.block_size, shape.head_dim),
            draws.permutation(num_blocks).view(shape.num_rows, shape.blocks_per_row),
            torch.full((shape.num_rows,), shape.num_tokens, dtype=torch.int32, device=draws.device),
        ),
        kwargs={
            "scale": shape.head_dim**-0.5,
            "scratch": scratch,
            "out_BHD": torch.empty_like(q_BHD),
        },
    )


def _reference_bytes(shape: DecodeShape) -> float:
    """Gathered keys and values as bf16 and fp32, and three times the scores; counted on a CPU."""
    slots = shape.num_rows * shape.blocks_per_row * shape.block_size
    return 12.0 * slots * (shape.num_kv_heads * shape.head_dim + shape.num_heads)


def _prepare_flash4(inputs: Inputs) -> Call:
    from flash_attn.cute import flash_attn_varlen_func

    q_BHD, pool_2GNSD, block_table_BP, seq_lens_B = inputs.args
    # [N, S, G, D] as strided views, as the library takes them.
    k_NSGD, v_NSGD = pool_2GNSD.permute(0, 2, 3, 1, 4)
    starts_B1 = torch.arange(len(q_BHD) + 1, dtype=torch.int32, device=q_BHD.device)
    return partial(
        flash_attn_varlen_func,
        q_BHD,
        k_NSGD,
        v_NSGD,
        cu_seqlens_q=starts_B1,
        seqused_k=seq_lens_B,
        max_seqlen_q=1,
        page_table=block_table_BP,
        softmax_scale=inputs.kwargs["scale"],
        causal=True,
        # Also the library's default. On compute capability 9 it asserts that there is one split,
        # and a number below one, which asks for its heuristic, fails there (4.0.0b36).
        num_splits=1,
    )


# Rows, tokens, query heads, KV heads. The last is one of four ranks of 64 heads.
SHAPES = (
    (64, 4096, 64, 4),
    (128, 1024, 32, 4),
    (4, 8192, 64, 4),
    (1, 32768, 64, 4),
    (8, 6144, 16, 1),
)
BLOCK_SIZES = (64, 128)

# The name says one split, since that is why few long rows leave most processors idle.
ONE_SPLIT = "flash_attention_4_one_split"

CASES = FamilyCases(
    family=DECODE_ATTENTION,
    cases=tuple(
        make_case(
            DecodeShape(
                num_rows=rows,
                num_tokens=tokens,
                num_heads=heads,
                num_kv_heads=kv_heads,
                block_size=block_size,
            )
        )
        for rows, tokens, heads, kv_heads in SHAPES
        for block_size in BLOCK_SIZES
    ),
    baselines=(Baseline(name=ONE_SPLIT, decline=decline_prefill_flash4, prepare=_prepare_flash4),),
    compared_with=(ONE_SPLIT, "reference"),
)
