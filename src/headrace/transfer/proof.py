"""The proof that a transfer plan carries: checked from the layouts, not from how it was made.

The fragments of a layer are the fragments of its pattern, shifted to the layer's area. So the
proof has three parts, each vectorised:

1. areas: every pattern stays inside its layer's area, and areas do not overlap;
2. coverage: the destination bytes written, sorted, do not overlap, and joined they are exactly
   the bytes of the range in all rows of the destination;
3. origin: every fragment is cut where either side may change block, and each piece must come from
   the address where the source keeps the same K or V, head and position.
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
        TransferError: Names the first byte or fragment at fault.

    Cost:
        A few dozen numpy calls per pair of ranks and kind of layer, over the fragments of one
        layer.
    """
    for layout in (*plan.sources, *plan.targets):
        _prove_areas(plan, layout)
    for token_bytes in sorted(set(plan.token_bytes)):
        for target in range(len(plan.targets)):
            _prove_target(plan, target, token_bytes)


def _prove_areas(plan: TransferPlan, layout: CacheLayout) -> None:
    starts = [plan.layer_offset(layout, layer) for layer in range(plan.num_layers)]
    area = 2 * layout.num_heads * layout.num_blocks * layout.block_size
    ends = [
        start + area * token_bytes
        for start, token_bytes in zip(starts, plan.token_bytes, strict=True)
    ]
    if starts[:1] != [0][: len(starts)] or starts[1:] != ends[:-1]:
        raise TransferError(f"plan places the layers of {layout} where the layout does not")


def _prove_target(plan: TransferPlan, target: int, token_bytes: int) -> None:
    senders = [source for source in range(len(plan.sources)) if (source, target) in plan.owners]
    patterns = [plan.pattern(source, target, token_bytes) for source in senders]
    written = Fragments(
        np.concatenate([pattern.source_offsets for pattern in patterns]),
        np.concatenate([pattern.target_offsets for pattern in patterns]),
        np.concatenate([pattern.num_bytes for pattern in patterns]),
    )
    sender = np.repeat(senders, [len(pattern.num_bytes) for pattern in patterns])
    _prove_coverage(plan, target, token_bytes, written)
    _prove_origin(plan, target, token_bytes, written=written, sender=sender)


def _prove_coverage(plan: TransferPlan, target: int, token_bytes: int, written: Fragments) -> None:
    order = np.argsort(written.target_offsets)
    offsets, lengths = written.target_offsets[order], written.num_bytes[order]
    twice = offsets[1:] < offsets[:-1] + lengths[:-1]
    if twice.any():
        byte = offsets[1:][twice][0]
        raise TransferError(f"plan writes byte {byte} of destination rank {target} twice")
    want = _expected_runs(plan.target, plan.targets[target], plan.start, plan.stop)
    _, came_offsets, came_lengths = join_runs(offsets, offsets, lengths)
    _, want_offsets, want_lengths = join_runs(*(part * token_bytes for part in want))
    if not (
        np.array_equal(came_offsets, want_offsets) and np.array_equal(came_lengths, want_lengths)
    ):
        raise TransferError(
            f"plan writes {lengths.sum()} bytes per layer to destination rank {target}, in other "
            f"places than the {want_lengths.sum()} bytes of tokens [{plan.start}, {plan.stop})"
        )


def _expected_runs(
    run: BlockRun, layout: CacheLayout, start: int, stop: int
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
    plan: TransferPlan,
    target_rank: int,
    token_bytes: int,
    *,
    written: Fragments,
    sender: Int64s,
) -> None:
    """Check the source address of every piece; coverage has already been shown.

    Blocks of both sides begin at multiples of ``unit`` bytes of their rows. Where source and
    destination offsets agree modulo ``unit``, no border of either side lies inside a piece, so
    that both addresses run on linearly and checking a piece's first byte checks all of it.
    """
    target = plan.targets[target_rank]
    unit = math.gcd(plan.source.block_size, plan.target.block_size) * token_bytes
    if ((written.source_offsets - written.target_offsets) % unit).any():
        raise TransferError("plan has a fragment that starts at different slots of its blocks")
    fragment, byte = _cut(written, unit)
    row, within = np.divmod(byte, target.num_blocks * target.block_size * token_bytes)
    kv, head = np.divmod(row, target.num_heads)
    slots = plan.source.slots(_positions(plan, within // token_bytes))
    first_head, num_heads, row_slots = _rows_of(plan.sources)[:, sender[fragment]]
    head += target.first_head - first_head
    want = ((kv * num_heads + head) * row_slots + slots) * token_bytes
    came = written.source_offsets[fragment] + byte - written.target_offsets[fragment]
    wrong = (came != want) | (head < 0) | (head >= num_heads) | (within % token_bytes != 0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise TransferError(
            f"plan reads byte {came[at]} of source rank {sender[fragment[at]]} for byte "
            f"{byte[at]} of destination rank {target_rank}: expected byte {want[at]}"
        )


def _rows_of(layouts: tuple[CacheLayout, ...]) -> Int64s:
    rows = [(one.first_head, one.num_heads, one.num_blocks * one.block_size) for one in layouts]
    return np.array(rows, np.int64).T


def _positions(plan: TransferPlan, slots: Int64s) -> Int64s:
    """Return the position that each destination slot holds."""
    size = plan.target.block_size
    first = plan.start // size
    used = plan.target.blocks[first : -(-plan.stop // size)]
    order = np.argsort(used)
    block, within = np.divmod(slots, size)
    return (order[np.searchsorted(used[order], block)] + first) * size + within


def _cut(pattern: Fragments, unit: int) -> tuple[Int64s, Int64s]:
    """Return each piece's fragment and first destination byte, cut at multiples of ``unit``."""
    first = pattern.target_offsets // unit
    count = (pattern.target_offsets + pattern.num_bytes - 1) // unit - first + 1
    fragment = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    cell = first[fragment] + np.arange(len(fragment)) - before[fragment]
    return fragment, np.maximum(cell * unit, pattern.target_offsets[fragment])
