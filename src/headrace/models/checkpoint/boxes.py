"""Which part of a tensor goes to which part of a rank's slice: interval arithmetic. Torch-free."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.models.slices import Bounds, ParameterSpec

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """One rectangular copy.

    Attributes:
        source: Where in the tensor, seen with the shape of its box.
        target: Where in the rank's slice of the parameter.
    """

    source: Slices
    target: Slices

    @property
    def num_elements(self) -> int:
        """Elements copied."""
        return math.prod(part.stop - part.start for part in self.source)


def copies(spec: ParameterSpec, box: tuple[Bounds, ...]) -> Iterator[Copy]:
    """Yield the copies from a tensor that fills ``box`` of a parameter to a rank's slice of it.

    Guarantees:
        Over boxes that tile the parameter, every element of the slice is written exactly once.

    Example:
        >>> spec = ParameterSpec(name="w", shape=(8,), slices=((0, ((0, 2), (4, 6))),))
        >>> [(c.source[0].start, c.target[0].start) for c in copies(spec, ((0, 8),))]
        [(0, 0), (4, 2)]
    """
    runs_by_axis = dict(spec.slices)
    per_axis = [
        _overlaps(runs_by_axis.get(axis, ((0, size),)), bounds)
        for axis, (size, bounds) in enumerate(zip(spec.shape, box, strict=True))
    ]
    for pairs in itertools.product(*per_axis):
        yield Copy(tuple(source for source, _ in pairs), tuple(target for _, target in pairs))


def _overlaps(runs: tuple[Bounds, ...], bounds: Bounds) -> list[tuple[slice, slice]]:
    pairs = []
    offset = 0
    for start, stop in runs:
        low, high = max(start, bounds[0]), min(stop, bounds[1])
        if low < high:
            target = offset + low - start
            pairs.append(
                (slice(low - bounds[0], high - bounds[0]), slice(target, target + high - low))
            )
        offset += stop - start
    return pairs


def split_rows(copy: Copy, max_elements: int) -> Iterator[Copy]:
    """Cut a copy along its first axis into parts of about ``max_elements`` (at least one row)."""
    source, target = copy.source[0], copy.target[0]
    num_rows = source.stop - source.start
    step = max(1, max_elements * num_rows // max(1, copy.num_elements))
    for row in range(0, num_rows, step):
        stop = min(row + step, num_rows)
        yield Copy(
            (slice(source.start + row, source.start + stop), *copy.source[1:]),
            (slice(target.start + row, target.start + stop), *copy.target[1:]),
        )
