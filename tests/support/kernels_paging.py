"""Sequences laid out in a paged pool, for tests of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.attention import (
    AttentionShape,
    QueryRun,
    paged_attention,
    plan_attention,
    write_kv,
)
from tests.support.kernels_checks import random

HEADS, KV_HEADS, DIM = 6, 2, 16
SCALE = DIM**-0.5


@dataclass(frozen=True)
class Histories:
    """Sequences with a query, key and value for every position."""

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]


def random_histories(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> Histories:
    def rows(heads: int, kind: int) -> list[Tensor]:
        return [
            random(length, heads, DIM, seed=10 * index + kind, dtype=dtype)
            for index, length in enumerate(lengths)
        ]

    return Histories(rows(HEADS, 0), rows(KV_HEADS, 1), rows(KV_HEADS, 2))


def attend(
    histories: Histories,
    queries: Sequence[tuple[int, int, int]],
    *,
    block_size: int = 16,
    exact: bool = True,
) -> list[Tensor]:
    """Attend with queries ``(sequence, start, stop)`` over pools full of NaN but for the history.

    Only what the queries may see is written: later positions hold NaN too.
    """
    seen = {}
    for sequence, _, stop in queries:
        seen[sequence] = max(stop, seen.get(sequence, 0))
    pool, tables = _fill(histories, seen, block_size)
    runs, row = [], 0
    for sequence, start, stop in queries:
        runs.append(
            QueryRun(
                first_row=row, num_tokens=stop - start, start=start, block_ids=tables[sequence]
            )
        )
        row += stop - start
    shape = AttentionShape(
        num_kv_heads=KV_HEADS,
        queries_per_kv=HEADS // KV_HEADS,
        head_dim=DIM,
        block_size=block_size,
        exact=exact,
    )
    q = torch.cat([histories.q[sequence][start:stop] for sequence, start, stop in queries])
    out = paged_attention(q, pool, plan_attention(runs, shape), scale=SCALE)
    return list(out.split([stop - start for _, start, stop in queries]))


def _fill(
    histories: Histories, seen: dict[int, int], block_size: int
) -> tuple[Tensor, dict[int, list[int]]]:
    """Write each sequence into blocks scattered over the pool, in descending ids."""
    counts = {sequence: -(-length // block_size) for sequence, length in seen.items()}
    num_blocks = sum(counts.values()) + 1
    pool = torch.full((2, KV_HEADS, num_blocks, block_size, DIM), torch.nan)
    pool = pool.to(histories.k[0].dtype)
    tables, free = {}, num_blocks
    for sequence, length in seen.items():
        tables[sequence] = list(range(free - 1, free - 1 - counts[sequence], -1))
        free -= counts[sequence]
        positions = torch.arange(length)
        blocks = torch.tensor(tables[sequence])[positions // block_size]
        slots = blocks * block_size + positions % block_size
        write_kv(pool, histories.k[sequence][:length], histories.v[sequence][:length], slots)
    return pool, tables


def library_attention(histories: Histories, sequence: int, dtype: torch.dtype) -> Tensor:
    """Causal attention of a whole sequence by the library, in ``dtype``."""
    q, k, v = (
        side[sequence].to(dtype).transpose(0, 1) for side in (histories.q, histories.k, histories.v)
    )
    k, v = (side.repeat_interleave(HEADS // KV_HEADS, dim=0) for side in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)
    return out.transpose(0, 1)
