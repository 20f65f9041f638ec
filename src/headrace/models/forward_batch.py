"""One step's input to a model: flat tokens of several sequences, and where their KV lies.

Shape letters: T = tokens of the batch   L = rows that yield logits
    B = sequences   P = blocks of the longest sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.attention import AttentionPlan, AttentionShape, QueryRun, plan_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChunk:
    """One sequence's part of a step.

    Attributes:
        token_ids: Tokens to compute, at least one.
        start: Position of the first; every earlier position has KV in the blocks.
        block_ids: The sequence's blocks in order, covering at least ``start + len(token_ids)``
            tokens.
        wants_logits: The last token yields logits.
    """

    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    wants_logits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """A step as tensors; built once, read by every layer, never modified.

    Attributes:
        token_ids_T: int64 tokens, sequence after sequence.
        positions_T: int64 position of each token in its sequence.
        slots_T: int64 ``block * block_size + offset`` where each token's KV goes.
        block_tables_BP: int64 block ids, rows padded with 0 past a sequence's blocks.
        query_starts: Row of each sequence's first token.
        query_lens: Tokens of each sequence in this batch.
        kv_lens: Tokens of each sequence that have KV after this batch.
        logit_rows_L: int64 rows that yield logits, in sequence order.
        attention: How to attend, worked out for one rank's attention shape.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    block_tables_BP: Tensor
    query_starts: tuple[int, ...]
    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    logit_rows_L: Tensor
    attention: AttentionPlan

    @property
    def num_tokens(self) -> int:
        """T, the tokens of the batch."""
        return self.token_ids_T.shape[0]


def build_forward_batch(chunks: Sequence[SequenceChunk], shape: AttentionShape) -> ForwardBatch:
    """Lay sequences' chunks side by side.

    Args:
        chunks: In any order, which is the order of rows and logits; may be empty (an idle rank
            of a lockstep group). Not modified.
        shape: The rank's attention, from ``Model.attention_shape``.

    Raises:
        ValueError: A chunk without tokens, or with blocks for fewer tokens than it has.

    Cost:
        O(tokens + blocks) host work.
    """
    for chunk in chunks:
        _check(chunk, shape.block_size)
    query_lens = tuple(len(chunk.token_ids) for chunk in chunks)
    query_starts = tuple(sum(query_lens[:index]) for index in range(len(chunks)))
    positions: list[int] = []
    slots: list[int] = []
    for chunk in chunks:
        span = range(chunk.start, chunk.start + len(chunk.token_ids))
        positions += span
        slots += _slots(chunk.block_ids, span, shape.block_size)
    runs = [
        QueryRun(first_row=row, num_tokens=n, start=chunk.start, block_ids=chunk.block_ids)
        for row, n, chunk in zip(query_starts, query_lens, chunks, strict=True)
    ]
    logit_rows = [
        row + n - 1
        for row, n, chunk in zip(query_starts, query_lens, chunks, strict=True)
        if chunk.wants_logits
    ]
    return ForwardBatch(
        token_ids_T=_int64([token for chunk in chunks for token in chunk.token_ids]),
        positions_T=_int64(positions),
        slots_T=_int64(slots),
        block_tables_BP=_block_tables(chunks),
        query_starts=query_starts,
        query_lens=query_lens,
        kv_lens=tuple(chunk.start + n for chunk, n in zip(chunks, query_lens, strict=True)),
        logit_rows_L=_int64(logit_rows),
        attention=plan_attention(runs, shape),
    )


def _check(chunk: SequenceChunk, block_size: int) -> None:
    num_tokens = chunk.start + len(chunk.token_ids)
    if not chunk.token_ids or chunk.start < 0:
        raise ValueError(f"a chunk of {len(chunk.token_ids)} tokens at position {chunk.start}")
    if len(chunk.block_ids) * block_size < num_tokens:
        raise ValueError(
            f"{len(chunk.block_ids)} blocks of {block_size} slots for {num_tokens} tokens"
        )


def _slots(block_ids: Sequence[int], positions: range, block_size: int) -> list[int]:
    return [
        block_ids[position // block_size] * block_size + position % block_size
        for position in positions
    ]


def _block_tables(chunks: Sequence[SequenceChunk]) -> Tensor:
    width = max((len(chunk.block_ids) for chunk in chunks), default=0)
    rows = [[*chunk.block_ids, *[0] * (width - len(chunk.block_ids))] for chunk in chunks]
    return _int64(rows).view(len(chunks), width)


def _int64(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
