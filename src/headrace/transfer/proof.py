"""The proof that a transfer plan carries: checked from the layouts, not from how it was made.

A layer's fragments are one pattern of token slots, times the layer's bytes per token, shifted to
the layer's area. So the proof has three parts, each vectorised:

1. coverage: the destination slots written, sorted, do not overlap, and joined they are exactly
   the slots of the range in all rows of the destination;
2. origin: every fragment is cut where either side may change block, and each piece must come from
   the slot where the source keeps the same K or V, head and position;
3. layers: the byte offsets of every layer are that pattern in the layer's own area.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.transport import Fragments, Int64s
from headrace.transfer.spans import BlockRun, join_runs

if TYPE_CHECKING:
    from headrace.transfer.plan import TransferPlan


def prove_plan(plan: TransferPlan) -> None:
    """Show that a plan writes each byte of its range once, from the right place, and no other.

    Raises:
        TransferError: Names the first slot, fragment or layer at fault.

    Cost:
        A few dozen numpy calls per destination rank over the fragments of one layer, and three
        comparisons per pair of ranks over those of all layers.
    """
    for target in range(len(plan.targets)):
        senders = [rank for rank in range(len(plan.sources)) if (rank, target) in plan.owners]
        patterns = [plan.pattern(source, target) for source in senders]
        written = Fragments(
            np.concatenate([pattern.source_offsets for pattern in patterns]),
            np.concatenate([pattern.target_offsets for pattern in patterns]),
            np.concatenate([pattern.num_bytes for pattern in patterns]),
        )
        sender = np.repeat(senders, [len(pattern.num_bytes) for pattern in patterns])
        _prove_coverage(plan, target, written)
        _prove_origin(plan, target, written=written, sender=sender)
        for source in senders:
            _prove_layers(plan, source, target)


def _prove_coverage(plan: TransferPlan, target: int, written: Fragments) -> None:
    order = np.argsort(written.target_offsets)
    slots, lengths = written.target_offsets[order], written.num_bytes[order]
    twice = slots[1:] < slots[:-1] + lengths[:-1]
    if twice.any():
        slot = slots[1:][twice][0]
        raise TransferError(f"plan writes token slot {slot} of destination rank {target} twice")
    want = _expected_runs(plan.target, plan.targets[target], start=plan.start, stop=plan.stop)
    _, came_slots, came_lengths = join_runs(slots, slots, lengths)
    _, want_slots, want_lengths = join_runs(*want)
    if not (np.array_equal(came_slots, want_slots) and np.array_equal(came_lengths, want_lengths)):
        raise TransferError(
            f"plan writes {lengths.sum()} token slots per layer to destination rank {target}, in "
            f"other places than the {want_lengths.sum()} of tokens [{plan.start}, {plan.stop})"
        )


def _expected_runs(
    run: BlockRun, layout: CacheLayout, *, start: int, stop: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Slots of the range in all rows of a layer, one run per (row, block), ascending; twice."""
    size = run.block_size
    index = np.arange(start // size, -(-stop // size) if stop > start else start // size)
    first = np.maximum(index * size, start)
    length = np.minimum((index + 1) * size, stop) - first
    slot = run.blocks[index] * size + first - index * size
    order = np.argsort(slot)
    rows = np.arange(2 * layout.num_heads) * (layout.num_blocks * size)
    slots = np.add.outer(rows, slot[order]).ravel()
    return slots, slots, np.tile(length[order], len(rows))


def _prove_origin(
    plan: TransferPlan, target_rank: int, *, written: Fragments, sender: Int64s
) -> None:
    """Check the source slot of every piece; coverage has already been shown.

    Blocks of both sides begin at multiples of ``unit`` slots of their rows. Where source and
    destination agree modulo ``unit``, no border of either side lies inside a piece, so that both
    run on linearly and checking a piece's first slot checks all of it.
    """
    target = plan.targets[target_rank]
    unit = math.gcd(plan.source.block_size, plan.target.block_size)
    if ((written.source_offsets - written.target_offsets) % unit).any():
        raise TransferError("plan has a fragment that starts at different slots of its blocks")
    fragment, slot = _cut(written, unit)
    row, within = np.divmod(slot, target.num_blocks * target.block_size)
    kv, head = np.divmod(row, target.num_heads)
    first_head, num_heads, row_slots = _rows_of(plan.sources)[:, sender[fragment]]
    head += target.first_head - first_head
    want = (kv * num_heads + head) * row_slots + plan.source.slots(_positions(plan, within))
    came = written.source_offsets[fragment] + slot - written.target_offsets[fragment]
    wrong = (came != want) | (head < 0) | (head >= num_heads)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TransferError(
            f"plan reads token slot {came[at]} of source rank {sender[fragment[at]]} for slot "
            f"{slot[at]} of destination rank {target_rank}: expected slot {want[at]}"
        )


def _prove_layers(plan: TransferPlan, source: int, target: int) -> None:
    pattern, layers = plan.pattern(source, target), plan.all_layers(source, target)
    for layout, slots, offsets in (
        (plan.sources[source], pattern.source_offsets, layers.source_offsets),
        (plan.targets[target], pattern.target_offsets, layers.target_offsets),
    ):
        num_slots = 2 * layout.num_heads * layout.num_blocks * layout.block_size
        # Counted back from where each area ends, which is where the next one begins.
        want = np.multiply.outer(plan.token_bytes, slots - num_slots)
        want += np.cumsum(plan.token_bytes * num_slots)[:, None]
        want -= offsets
        if want.any() or (slots < 0).any() or (slots >= num_slots).any():
            raise TransferError(f"plan places the layers of {layout} where the layout does not")
    if (layers.num_bytes != pattern.num_bytes * plan.token_bytes[:, None]).any():
        raise TransferError(f"plan has fragments of other lengths from {source} to {target}")


def _rows_of(layouts: tuple[CacheLayout, ...]) -> Int64s:
    rows = [(one.first_head, one.num_heads, one.num_blocks * one.block_size) for one in layouts]
    return np.array(rows, np.int64).T


def _positions(plan: TransferPlan, slots: Int64s) -> Int64s:
    """Return the position that each destination slot of a row holds."""
    size = plan.target.block_size
    first = plan.start // size
    used = plan.target.blocks[first : -(-plan.stop // size)]
    order = np.argsort(used)
    block, within = np.divmod(slots, size)
    return (order[np.searchsorted(used[order], block)] + first) * size + within


def _cut(written: Fragments, unit: int) -> tuple[Int64s, Int64s]:
    """Return each piece's fragment and first destination slot, cut at multiples of ``unit``."""
    first = written.target_offsets // unit
    count = (written.target_offsets + written.num_bytes - 1) // unit - first + 1
    fragment = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    cell = first[fragment] + np.arange(len(fragment)) - before[fragment]
    return fragment, np.maximum(cell * unit, written.target_offsets[fragment])
