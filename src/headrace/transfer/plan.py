"""The transfer plan: which bytes of which source rank go where on which destination rank.

A pure function of the cache layouts, the block ids and a token range. A plan is three small
things: who sends which head (``owners``), which token slots go together (``spans``), and how rows
and layers are laid out; the fragments of a (source, destination, layer) are their outer sum, so a
layer costs two additions. There is never a Python object per fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout
from headrace.core.transport import Fragments, Int64s
from headrace.transfer.legality import check_blocks, check_layouts
from headrace.transfer.owners import Owners, choose_owners
from headrace.transfer.proof import prove_plan
from headrace.transfer.spans import BlockRun, Spans, cut_spans, join_runs


class TransferPlan:
    """Fragments of one token range between all pairs of ranks, made on demand.

    Build it with ``plan_transfer``. Not changed by anything but its own caches; usable from one
    thread at a time.

    Attributes:
        sources: Layout of each source rank.
        targets: Layout of each destination rank.
        source: The sequence's blocks on the source side.
        target: The sequence's blocks on the destination side.
        start: First position carried.
        stop: Position after the last one carried.
        owners: Heads sent, by (source rank, destination rank).
        spans: Token slots that go together, common to all heads and layers.
    """

    def __init__(
        self,
        *,
        sources: tuple[CacheLayout, ...],
        targets: tuple[CacheLayout, ...],
        source: BlockRun,
        target: BlockRun,
        start: int,
        stop: int,
        owners: Owners,
        spans: Spans,
    ) -> None:
        self.sources = sources
        self.targets = targets
        self.source = source
        self.target = target
        self.start = start
        self.stop = stop
        self.owners = owners
        self.spans = spans
        self.token_bytes = [schema.token_bytes for schema in targets[0].layers]
        self._patterns: dict[tuple[int, int, int], Fragments] = {}
        self._layers: dict[tuple[int, int], list[Fragments]] = {}
        # A layer's area begins at (row slots of the layout) x (token bytes of the layers before).
        self._bytes_before = list(accumulate(self.token_bytes, initial=0))

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.token_bytes)

    def for_rank(self, source_rank: int, target_rank: int, layer: int) -> Fragments:
        """Return what ``source_rank`` writes to ``target_rank`` for one layer; may be empty.

        Cost:
            A look-up; a pair's layers are all made at its first call.
        """
        pair = (source_rank, target_rank)
        if pair not in self._layers:
            self._layers[pair] = self._make_layers(source_rank, target_rank)
        return self._layers[pair][layer]

    def pattern(self, source_rank: int, target_rank: int, token_bytes: int) -> Fragments:
        """Return a pair's fragments relative to the start of a layer's area.

        All layers whose tokens have ``token_bytes`` bytes share it.
        """
        key = (source_rank, target_rank, token_bytes)
        if key not in self._patterns:
            self._patterns[key] = self._make_pattern(*key)
        return self._patterns[key]

    def layer_offset(self, layout: CacheLayout, layer: int) -> int:
        """Return ``layout.layer_offset(layer)`` without walking the layers again."""
        return _area_slots(layout) * self._bytes_before[layer]

    def prove(self) -> TransferPlan:
        """Check the fragments against the layouts themselves; see ``proof.prove_plan``.

        Returns:
            The plan, so that a call reads ``plan_transfer(...).prove()``.

        Raises:
            TransferError: The plan is wrong, which is a bug and never the caller's fault.
        """
        prove_plan(self)
        return self

    def _make_layers(self, source_rank: int, target_rank: int) -> list[Fragments]:
        layers: list[Fragments] = []
        for token_bytes, run in groupby(self.token_bytes):
            first, stop = len(layers), len(layers) + len(list(run))
            pattern = self.pattern(source_rank, target_rank, token_bytes)
            before = np.array(self._bytes_before[first:stop], np.int64)
            source_areas = before * _area_slots(self.sources[source_rank])
            target_areas = before * _area_slots(self.targets[target_rank])
            layers += [
                Fragments(source_offsets, target_offsets, pattern.num_bytes)
                for source_offsets, target_offsets in zip(
                    np.add.outer(source_areas, pattern.source_offsets),
                    np.add.outer(target_areas, pattern.target_offsets),
                    strict=True,
                )
            ]
        return layers

    def _make_pattern(self, source_rank: int, target_rank: int, token_bytes: int) -> Fragments:
        heads = np.array(self.owners.get((source_rank, target_rank), ()), np.int64)
        source_rows = _row_offsets(self.sources[source_rank], heads, token_bytes)
        target_rows = _row_offsets(self.targets[target_rank], heads, token_bytes)
        spans = self.spans
        shape = (len(source_rows), len(spans.num_tokens))
        return Fragments(
            *join_runs(
                np.add.outer(source_rows, spans.source_slots * token_bytes).ravel(),
                np.add.outer(target_rows, spans.target_slots * token_bytes).ravel(),
                np.broadcast_to(spans.num_tokens * token_bytes, shape).ravel(),
            )
        )


def plan_transfer(
    *,
    sources: Sequence[CacheLayout],
    targets: Sequence[CacheLayout],
    source_blocks: Sequence[int] | Int64s,
    target_blocks: Sequence[int] | Int64s,
    start: int,
    stop: int,
    seed: int = 0,
) -> TransferPlan:
    """Plan how tokens ``[start, stop)`` of one sequence go from one replica to another.

    Args:
        sources: Layout of each source rank; they share one block size and the block ids.
        targets: Layout of each destination rank; they share one block size and the block ids.
        source_blocks: Block ids at the source, for the sequence from position 0.
        target_blocks: Block ids at the destination, for the sequence from position 0.
        start: First position to carry [tokens].
        stop: Position after the last to carry [tokens].
        seed: Chooses between source ranks that hold the same head; see ``choose_owners``.

    Raises:
        IllegalPlanError: Layouts between which no plan exists, or block ids that do not hold the
            range. The message names both values.

    Guarantees:
        * Every destination byte of the range, in every layer, K and V, of every head that a
          destination rank holds, is written exactly once, from a source rank that holds the
          head; no other byte is written (``prove`` checks it).
        * No two fragments of a layer could be one.
        * Pure: same arguments, same plan, on every rank.

    Cost:
        6000 tokens of Qwen3-235B (94 layers, 4 KV heads, TP4 to DP): under 2 ms of one core with
        all fragments made and proved; ``bench/plan_time.py`` measures it.
    """
    sources, targets = tuple(sources), tuple(targets)
    check_layouts(sources, targets)
    source = BlockRun(blocks=_ids(source_blocks), block_size=sources[0].block_size)
    target = BlockRun(blocks=_ids(target_blocks), block_size=targets[0].block_size)
    if not 0 <= start <= stop:
        raise IllegalPlanError(f"token range [{start}, {stop}): expected 0 <= start <= stop")
    check_blocks(source, sources, side="source", start=start, stop=stop)
    check_blocks(target, targets, side="destination", start=start, stop=stop)
    return TransferPlan(
        sources=sources,
        targets=targets,
        source=source,
        target=target,
        start=start,
        stop=stop,
        owners=choose_owners(sources, targets, seed=seed),
        spans=cut_spans(source, target, start=start, stop=stop),
    )


def _ids(blocks: Sequence[int] | Int64s) -> Int64s:
    return np.asarray(blocks, np.int64)


def _area_slots(layout: CacheLayout) -> int:
    """Token slots of all rows of one layer."""
    return 2 * layout.num_heads * layout.num_blocks * layout.block_size


def _row_offsets(layout: CacheLayout, heads: Int64s, token_bytes: int) -> Int64s:
    """Byte offset, in a layer's area, of each (K or V, head) row: K rows first."""
    rows = np.concatenate((heads, heads + layout.num_heads)) - layout.first_head
    return rows * (layout.num_blocks * layout.block_size * token_bytes)
