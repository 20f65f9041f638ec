"""Runs of tokens that lie together on both sides, in token slots.

A slot is one token's place in a head's row: ``block_id * block_size + position % block_size``.
Slots of a row are contiguous bytes, over block borders too, so a run of block ids is one span.
Nothing here knows heads, layers or bytes: all rows of all layers share the spans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.core.transport import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Where one side keeps the tokens of one sequence.

    Attributes:
        blocks: int64 block ids, for the sequence from position 0.
        block_size: Tokens of a block.
    """

    blocks: Int64s
    block_size: int

    def slots(self, positions: Int64s) -> Int64s:
        """Return the slot of each position."""
        index, within = np.divmod(positions, self.block_size)
        return self.blocks[index] * self.block_size + within


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Equal-length int64 arrays, ascending in ``target_slots``.

    Attributes:
        source_slots: First slot of each span in a source row.
        target_slots: First slot of each span in a destination row.
        num_tokens: Length of each span [tokens].
        num_pieces: How many runs there were before joining (cut at the borders of both sides).
    """

    source_slots: Int64s
    target_slots: Int64s
    num_tokens: Int64s
    num_pieces: int


def cut_spans(source: BlockRun, target: BlockRun, *, start: int, stop: int) -> Spans:
    """Return the fewest spans that carry ``[start, stop)`` from one side to the other.

    Guarantees:
        * Every position of ``[start, stop)`` is in exactly one span; no other token is.
        * Two spans that could be one are one, whatever the order of the block ids.

    Cost:
        O(pieces) numpy work; pieces = tokens / gcd of the block sizes.
    """
    grain = math.gcd(source.block_size, target.block_size)
    inner = np.arange(start - start % grain + grain, stop, grain)
    positions = np.concatenate(([start], inner)) if stop > start else inner
    lengths = np.diff(positions, append=stop)
    target_slots = target.slots(positions)
    order = np.argsort(target_slots)
    joined = join_runs(source.slots(positions)[order], target_slots[order], lengths[order])
    return Spans(
        source_slots=joined[0],
        target_slots=joined[1],
        num_tokens=joined[2],
        num_pieces=len(positions),
    )


def join_runs(sources: Int64s, targets: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Join neighbours that are contiguous on both sides; arrays are ascending in ``targets``."""
    if len(lengths) < 2:
        return sources, targets, lengths
    broken = (sources[1:] != sources[:-1] + lengths[:-1]) | (
        targets[1:] != targets[:-1] + lengths[:-1]
    )
    first = np.concatenate(([0], np.flatnonzero(broken) + 1))
    return sources[first], targets[first], np.add.reduceat(lengths, first)
