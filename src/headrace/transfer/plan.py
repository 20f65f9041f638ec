"""The transfer plan: which bytes of which source rank go where on which destination rank.

A pure function of the cache layouts, the block ids and a token range. Everything but the last
step is counted in token slots: a head's row is ``num_blocks * block_size`` slots, a layer is its K
rows and then its V rows, and so a pair of ranks has one pattern of slots for all layers, whatever
their dtypes and widths. A layer's fragments are the pattern times its bytes per token, shifted to
its area. There is never a Python object per fragment.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    Build it with ``plan_transfer``. Changed by nothing but its own caches; used by one thread at
    a time.

    Attributes:
        sources: Layout of each source rank.
        targets: Layout of each destination rank.
        source: The sequence's blocks on the source side.
        target: The sequence's blocks on the destination side.
        start: First position carried.
        stop: Position after the last one carried.
        owners: Heads sent, by (source rank, destination rank).
        spans: Slots of one row that go together, common to all heads and layers.
        token_bytes: Bytes of one token's K (or V) of one head, by layer.
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
        widths = [schema.token_bytes for schema in targets[0].layers]
        self.token_bytes = np.array(widths, np.int64)
        self._is_uniform = len(set(widths)) == 1
        self._bytes_before = np.cumsum(self.token_bytes) - self.token_bytes
        self._patterns: dict[tuple[int, int], Fragments] = {}
        self._layers: dict[tuple[int, int], Fragments] = {}

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.token_bytes)

    def for_rank(self, source_rank: int, target_rank: int, layer: int) -> Fragments:
        """Return what ``source_rank`` writes to ``target_rank`` for one layer; may be empty.

        Cost:
            Three views; all layers of a pair are made at its first call.
        """
        layers = self.all_layers(source_rank, target_rank)
        return Fragments(
            layers.source_offsets[layer], layers.target_offsets[layer], layers.num_bytes[layer]
        )

    def all_layers(self, source_rank: int, target_rank: int) -> Fragments:
        """Return a pair's fragments of all layers: read-only int64 of [layers, fragments]."""
        pair = (source_rank, target_rank)
        if pair not in self._layers:
            self._layers[pair] = self._make_layers(source_rank, target_rank)
        return self._layers[pair]

    def pattern(self, source_rank: int, target_rank: int) -> Fragments:
        """Return a pair's fragments of any layer, counted in token slots instead of bytes."""
        pair = (source_rank, target_rank)
        if pair not in self._patterns:
            self._patterns[pair] = self._make_pattern(source_rank, target_rank)
        return self._patterns[pair]

    def prove(self) -> TransferPlan:
        """Check the fragments against the layouts themselves; see ``proof.prove_plan``.

        Returns:
            The plan, so that a call reads ``plan_transfer(...).prove()``.

        Raises:
            TransferError: The plan is wrong, which is a bug and never the caller's fault.
        """
        prove_plan(self)
        return self

    def _make_layers(self, source_rank: int, target_rank: int) -> Fragments:
        pattern = self.pattern(source_rank, target_rank)
        source_offsets = np.multiply.outer(self.token_bytes, pattern.source_offsets)
        target_offsets = np.multiply.outer(self.token_bytes, pattern.target_offsets)
        before = self._bytes_before[:, None]
        source_offsets += before * _area_slots(self.sources[source_rank])
        target_offsets += before * _area_slots(self.targets[target_rank])
        # Layers are mostly of one width: then one row of lengths serves them all. Memory that is
        # not touched is time that is not spent: half of a large plan's time is page faults.
        widths = self.token_bytes[:1] if self._is_uniform else self.token_bytes
        lengths = np.multiply.outer(widths, pattern.num_bytes)
        return Fragments(
            source_offsets, target_offsets, np.broadcast_to(lengths, source_offsets.shape)
        )

    def _make_pattern(self, source_rank: int, target_rank: int) -> Fragments:
        heads = np.array(self.owners.get((source_rank, target_rank), ()), np.int64)
        source_rows = _row_slots(self.sources[source_rank], heads)
        target_rows = _row_slots(self.targets[target_rank], heads)
        return Fragments(
            *join_runs(
                np.add.outer(source_rows, self.spans.source_slots).ravel(),
                np.add.outer(target_rows, self.spans.target_slots).ravel(),
                np.tile(self.spans.num_tokens, len(source_rows)),
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


def _row_slots(layout: CacheLayout, heads: Int64s) -> Int64s:
    """First slot, in a layer, of each (K or V, head) row: K rows first."""
    rows = np.concatenate((heads, heads + layout.num_heads)) - layout.first_head
    return rows * (layout.num_blocks * layout.block_size)
