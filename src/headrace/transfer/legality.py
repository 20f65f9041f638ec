"""Refuses, by name, layouts and block ids between which no transfer plan exists."""

from __future__ import annotations

import numpy as np

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout
from headrace.transfer.spans import BlockRun


def check_layouts(sources: tuple[CacheLayout, ...], targets: tuple[CacheLayout, ...]) -> None:
    """Refuse layouts that differ in anything but heads held, blocks and block size.

    Raises:
        IllegalPlanError: Names the first thing that differs, with both values.
    """
    for side, layouts in (("source", sources), ("destination", targets)):
        if not layouts:
            raise IllegalPlanError(f"no {side} ranks: expected at least one layout")
        for rank, layout in enumerate(layouts):
            if layout.block_size != layouts[0].block_size:
                raise IllegalPlanError(
                    f"{side} rank {rank} has block_size {layout.block_size}, {side} rank 0 has "
                    f"{layouts[0].block_size}: ranks that share block ids share a block size"
                )
    first = targets[0]
    for side, layouts in (("source", sources), ("destination", targets)):
        for rank, layout in enumerate(layouts):
            # Comparing tuples of equal structs is cheap; only a refusal looks closer.
            if layout.layers != first.layers:
                _refuse_layers(f"{side} rank {rank}", layout, first)


def check_blocks(
    run: BlockRun, layouts: tuple[CacheLayout, ...], *, side: str, start: int, stop: int
) -> None:
    """Refuse block ids that cannot hold ``[start, stop)``: too few, out of the pool, or twice."""
    need = -(-stop // run.block_size) if stop > start else 0
    if len(run.blocks) < need:
        raise IllegalPlanError(
            f"{len(run.blocks)} {side} blocks of {run.block_size} tokens hold "
            f"{len(run.blocks) * run.block_size} tokens: {stop} need {need} blocks"
        )
    used = run.blocks[start // run.block_size : need]
    if not len(used):
        return
    pool = min(layout.num_blocks for layout in layouts)
    low, high = int(used.min()), int(used.max())
    if low < 0 or high >= pool:
        raise IllegalPlanError(
            f"{side} block {low if low < 0 else high}: the pool has blocks 0 to {pool - 1}"
        )
    ordered = np.sort(used)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise IllegalPlanError(f"{side} block {twice[0]} is named twice: expected distinct blocks")


def _refuse_layers(who: str, layout: CacheLayout, first: CacheLayout) -> None:
    if len(layout.layers) != len(first.layers):
        raise IllegalPlanError(
            f"{who} has {len(layout.layers)} layers, destination rank 0 has {len(first.layers)}: "
            f"both sides must run the same model"
        )
    for index, (mine, theirs) in enumerate(zip(layout.layers, first.layers, strict=True)):
        for name in ("num_kv_heads", "head_dim", "dtype"):
            came, want = getattr(mine, name), getattr(theirs, name)
            if came != want:
                raise IllegalPlanError(
                    f"layer {index}: {who} has {name} {came}, destination rank 0 has {want}"
                )
