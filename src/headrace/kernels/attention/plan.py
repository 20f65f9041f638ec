"""What paged attention does for a batch, worked out once and run for every layer.

A sequence's queries are cut into **runs** of at most one tile of tokens. Runs of equal length make
a **piece** and are computed together, longest history first; a piece walks over the KV in
**spans**, groups of tiles that the same runs still reach. None of this changes a result: a row is
folded over the same tiles in the same order whatever stands beside it.

Shape letters:
    B = runs of a piece   A = runs of a span, the first of the piece's   Q = tokens of a run
    M = query rows of one KV head, Q * (query heads per KV head) padded to 16
    L = tiles of a span   K = KV_TILE_TOKENS   S = token slots of a block
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.layouts import KV_TILE_TOKENS
from headrace.kernels.attention.single import Group, Query, plan_groups
from headrace.kernels.linear import ROW_MULTIPLE

# Elements of the temporaries of one span, over all its heads: 2^21 keep a decode step in cache
# and a long prompt under some tens of MiB.
MAX_SPAN_ELEMENTS = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes of one rank's attention, equal in all layers.

    Attributes:
        num_kv_heads: KV heads held.
        queries_per_kv: Query heads of a KV head.
        head_dim: Width of a head.
        block_size: Token slots of a block; divides ``KV_TILE_TOKENS``.
        exact: Fold all keys tile by tile; otherwise single queries take one softmax.
    """

    num_kv_heads: int
    queries_per_kv: int
    head_dim: int
    block_size: int
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRun:
    """Consecutive tokens of one sequence whose queries attend in this batch.

    Attributes:
        first_row: Row of the first token in the batch.
        num_tokens: Tokens of the run.
        start: Position of the first token.
        block_ids: The sequence's blocks in order, covering at least ``start + num_tokens`` tokens.
    """

    first_row: int
    num_tokens: int
    start: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tiles that the first runs of a piece fold in one go.

    Attributes:
        num_runs: A.
        num_tiles: L.
        block_ids: int64 ``[A * L * K / S]``, run-major; blocks past a run's end repeat block 0
            of the pool and are hidden.
        hidden_ALMK: True where a query row must not see a key; None when it may see all.
        unwritten: int64 rows of ``[A * L * K]`` where no token is; None when all are there.
    """

    num_runs: int
    num_tiles: int
    block_ids: Tensor
    hidden_ALMK: Tensor | None = None
    unwritten: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Runs of equal length, longest history first.

    Attributes:
        num_runs: B.
        num_tokens: Q.
        num_rows: M.
        batch_rows: int64 ``[B * Q]``: the runs' rows in the batch; None when they are all of the
            batch's rows in order.
        spans: The tiles, in order from position 0.
    """

    num_runs: int
    num_tokens: int
    num_rows: int
    batch_rows: Tensor | None
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The pieces and groups of a batch; every row of the batch is in exactly one."""

    pieces: tuple[Piece, ...]
    groups: tuple[Group, ...] = ()


def plan_attention(runs: Sequence[QueryRun], shape: AttentionShape) -> AttentionPlan:
    """Plan a batch.

    Args:
        runs: One per sequence that has queries, in row order; together they cover the batch's
            rows 0..T-1. Not modified.
        shape: Sizes of this rank's attention.

    Returns:
        The plan; valid as long as the block ids are.

    Cost:
        O(runs * tiles) host work per batch, not per layer.
    """
    num_rows = sum(run.num_tokens for run in runs)
    singles = [] if shape.exact else [run for run in runs if run.num_tokens == 1]
    by_length: dict[int, list[QueryRun]] = defaultdict(list)
    for run in runs:
        if shape.exact or run.num_tokens > 1:
            for part in _cut(run):
                by_length[part.num_tokens].append(part)
    pieces = (piece for parts in by_length.values() for piece in _pieces(parts, shape, num_rows))
    return AttentionPlan(tuple(pieces), _groups(singles, shape, num_rows))


def _groups(runs: list[QueryRun], shape: AttentionShape, num_rows: int) -> tuple[Group, ...]:
    queries = [
        Query(row=run.first_row, num_tokens=run.start + 1, block_ids=run.block_ids) for run in runs
    ]
    return plan_groups(
        queries,
        block_size=shape.block_size,
        elements_per_token=2 * shape.num_kv_heads * shape.head_dim,
        num_rows=num_rows,
    )


def _cut(run: QueryRun) -> Iterator[QueryRun]:
    for offset in range(0, run.num_tokens, KV_TILE_TOKENS):
        yield QueryRun(
            first_row=run.first_row + offset,
            num_tokens=min(KV_TILE_TOKENS, run.num_tokens - offset),
            start=run.start + offset,
            block_ids=run.block_ids,
        )


def _pieces(runs: list[QueryRun], shape: AttentionShape, num_batch_rows: int) -> Iterator[Piece]:
    num_tokens = runs[0].num_tokens
    num_rows = -(-num_tokens * shape.queries_per_kv // ROW_MULTIPLE) * ROW_MULTIPLE
    # Of one run's tile: the scores, K and V.
    elements = shape.num_kv_heads * KV_TILE_TOKENS * (num_rows + 2 * shape.head_dim)
    max_run_tiles = max(1, MAX_SPAN_ELEMENTS // elements)
    # Longest first, but no reordering among runs that end in the same tile.
    runs = sorted(runs, key=lambda run: -_num_tiles(run))
    for first in range(0, len(runs), max_run_tiles):
        part = runs[first : first + max_run_tiles]
        yield Piece(
            num_runs=len(part),
            num_tokens=num_tokens,
            num_rows=num_rows,
            batch_rows=_batch_rows(part, num_batch_rows),
            spans=tuple(_spans(part, shape, num_rows=num_rows, max_run_tiles=max_run_tiles)),
        )


def _num_tiles(run: QueryRun) -> int:
    return -(-(run.start + run.num_tokens) // KV_TILE_TOKENS)


def _batch_rows(runs: list[QueryRun], num_batch_rows: int) -> Tensor | None:
    rows = [row for run in runs for row in range(run.first_row, run.first_row + run.num_tokens)]
    return None if rows == list(range(num_batch_rows)) else torch.tensor(rows)


def _spans(
    runs: list[QueryRun], shape: AttentionShape, *, num_rows: int, max_run_tiles: int
) -> Iterator[Span]:
    num_tiles = [_num_tiles(run) for run in runs]
    tile = 0
    while tile < num_tiles[0]:
        num_runs = sum(count > tile for count in num_tiles)
        # Tiles that all these runs reach; of them, those that every row of theirs sees whole.
        stop = num_tiles[num_runs - 1]
        whole = min(run.start + 1 for run in runs[:num_runs]) // KV_TILE_TOKENS
        if tile < whole:
            stop = min(stop, whole)
        stop = min(stop, tile + max(1, max_run_tiles // num_runs))
        tiles = range(tile, stop)
        if tile < whole:
            yield _span(runs[:num_runs], tiles, shape)
        else:
            yield _masked_span(runs[:num_runs], tiles, shape, num_rows=num_rows)
        tile = stop


def _span(runs: list[QueryRun], tiles: range, shape: AttentionShape) -> Span:
    blocks_per_tile = KV_TILE_TOKENS // shape.block_size
    window = slice(tiles.start * blocks_per_tile, tiles.stop * blocks_per_tile)
    ids: list[int] = []
    for run in runs:
        run_ids = run.block_ids[window]
        ids += run_ids
        ids += [0] * (len(tiles) * blocks_per_tile - len(run_ids))
    return Span(num_runs=len(runs), num_tiles=len(tiles), block_ids=torch.tensor(ids))


def _masked_span(
    runs: list[QueryRun], tiles: range, shape: AttentionShape, *, num_rows: int
) -> Span:
    span = _span(runs, tiles, shape)
    keys_L1K = torch.arange(tiles.start * KV_TILE_TOKENS, tiles.stop * KV_TILE_TOKENS).view(
        len(tiles), 1, KV_TILE_TOKENS
    )
    starts_A111 = torch.tensor([run.start for run in runs]).view(-1, 1, 1, 1)
    # Padding rows see what the run's last token sees, so that their maxima are finite.
    tokens_M = (torch.arange(num_rows) // shape.queries_per_kv).clamp(max=runs[0].num_tokens - 1)
    ends_A111 = starts_A111 + runs[0].num_tokens
    return Span(
        num_runs=span.num_runs,
        num_tiles=span.num_tiles,
        block_ids=span.block_ids,
        hidden_ALMK=keys_L1K > starts_A111 + tokens_M[:, None],
        unwritten=(keys_L1K >= ends_A111).flatten().nonzero().squeeze(1),
    )
