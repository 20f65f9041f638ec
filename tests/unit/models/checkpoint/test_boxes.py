"""Interval arithmetic between tensors and slices: nothing left out, nothing twice."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.checkpoint.boxes import copies, split_rows
from headrace.models.slices import Bounds, ParameterSpec


def cuts(draw: st.DrawFn, size: int) -> list[Bounds]:
    inner = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
    edges = [0, *sorted(inner), size]
    return list(zip(edges, edges[1:], strict=False))


@st.composite
def cases(draw: st.DrawFn) -> tuple[ParameterSpec, list[tuple[Bounds, ...]]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    slices = []
    for axis, size in enumerate(shape):
        runs = [run for run in cuts(draw, size) if draw(st.booleans())]
        if runs:
            slices.append((axis, tuple(runs)))
    tiles: list[tuple[Bounds, ...]] = [()]
    for size in shape:
        bounds_of_axis = cuts(draw, size)
        tiles = [(*tile, bounds) for tile in tiles for bounds in bounds_of_axis]
    return ParameterSpec(name="w", shape=shape, slices=tuple(slices)), tiles


@given(cases(), st.integers(1, 9))
def test_tiles_fill_a_slice_exactly_once(
    case: tuple[ParameterSpec, list[tuple[Bounds, ...]]], max_elements: int
) -> None:
    spec, tiles = case
    whole = torch.arange(1, 1 + torch.Size(spec.shape).numel()).view(spec.shape)
    want = whole
    for axis, runs in spec.slices:
        want = torch.cat([want.narrow(axis, a, b - a) for a, b in runs], dim=axis)
    came = torch.zeros(spec.local_shape, dtype=torch.int64)
    num_written = torch.zeros(spec.local_shape, dtype=torch.int64)
    for box in tiles:
        tile = whole[tuple(slice(a, b) for a, b in box)]
        for copy in copies(spec, box):
            for part in split_rows(copy, max_elements):
                came[part.target] = tile[part.source]
                num_written[part.target] += 1
    assert torch.equal(came, want)
    assert bool((num_written == 1).all())


def test_rows_are_cut_to_the_asked_size() -> None:
    spec = ParameterSpec(name="w", shape=(10, 4))
    (copy,) = copies(spec, ((0, 10), (0, 4)))
    assert [part.num_elements for part in split_rows(copy, 12)] == [12, 12, 12, 4]
    assert [part.num_elements for part in split_rows(copy, 1)] == [4] * 10
