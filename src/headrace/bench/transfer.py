"""How fast KV moves: each transport beside the plainest way to move the same bytes.

``shm`` stands beside ``np.copyto`` between two shared mappings, ``tcp`` beside one plain loopback
connection. Both sides of a pair move the same list of writes, alternated many times, since other
work on the machine comes and goes: a ratio is the median over the pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from headrace.bench.rows import Row, make_row
from headrace.bench.transfer_peers import (
    ATOM_BYTES,
    LAYOUT,
    MemcpyPair,
    SocketPair,
    TransportPair,
)
from headrace.core.transport import Fragments

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
# The article's page of KV: 512 atoms of 32 KiB, no two of which lie together.
ARTICLE_ATOMS = 512
# Bytes that one timing moves: enough that its ends do not count.
RUN_BYTES = 256 << 20
MAX_WRITES = 2000
REPEATS = 11
BASELINES = {"shm": "memcpy", "tcp": "socket"}


class Timed(Protocol):
    """One side of a pair."""

    def time(self, writes: list[Fragments]) -> float:
        """Return how long it takes to move ``writes`` [s]."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


def contiguous_writes(num_bytes: int) -> list[Fragments]:
    """Return writes of one range each, walking through the whole pool."""
    count = max(2, min(MAX_WRITES, RUN_BYTES // num_bytes))
    offsets = np.arange(count, dtype=np.int64) * num_bytes % LAYOUT.num_bytes
    return [Fragments(*np.array([[at], [at], [num_bytes]], np.int64)) for at in offsets.tolist()]


def paged_writes() -> list[Fragments]:
    """Return paged writes of scattered atoms."""
    rng = np.random.default_rng(1)
    atoms = LAYOUT.num_bytes // ATOM_BYTES
    return [
        Fragments(
            rng.permutation(atoms)[:ARTICLE_ATOMS] * ATOM_BYTES,
            rng.permutation(atoms)[:ARTICLE_ATOMS] * ATOM_BYTES,
            np.full(ARTICLE_ATOMS, ATOM_BYTES, np.int64),
        )
        for _ in range(RUN_BYTES // (ARTICLE_ATOMS * ATOM_BYTES))
    ]


def cases() -> Iterator[tuple[str, list[Fragments]]]:
    """Yield the name and the writes of every case."""
    for size in SIZES:
        name = f"{size >> 10}KiB" if size < 1 << 20 else f"{size >> 20}MiB"
        yield name, contiguous_writes(size)
    yield "article", paged_writes()


def measure_case(
    ours: Timed, theirs: Timed, writes: list[Fragments], *, repeats: int
) -> tuple[list[float], list[float]]:
    """Return the times per write of both sides [s], pair by pair, after one pair to warm up."""
    pairs = [(ours.time(writes), theirs.time(writes)) for _ in range(repeats + 1)][1:]
    return [a / len(writes) for a, _ in pairs], [b / len(writes) for _, b in pairs]


def describe(
    transport: str, case: str, num_bytes: int, times: tuple[list[float], list[float]]
) -> Row:
    """Return the row of one case; ``ratio`` is our speed over the baseline's."""
    ours_s, theirs_s = times
    name = BASELINES[transport]
    p50_us, floor_us = (statistics.median(side) * 1e6 for side in times)
    return make_row(
        "transfer",
        f"{transport}/{case}",
        p50_us=round(p50_us, 2),
        p99_us=round(max(ours_s) * 1e6, 2),
        value=round(num_bytes / p50_us / 1e3, 3),
        unit="GB/s",
        bytes=num_bytes,
        floor_us=round(floor_us, 2),
        baselines={name: round(num_bytes / floor_us / 1e3, 3)},
        ratio=round(statistics.median(b / a for a, b in zip(ours_s, theirs_s, strict=True)), 3),
    )


def measure(transport: str, *, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield a row per case of one transport."""
    source = np.random.default_rng(0).integers(0, 256, LAYOUT.num_bytes, np.uint8)
    theirs: Timed = MemcpyPair(source) if transport == "shm" else SocketPair(source)
    ours = TransportPair(transport, source)
    try:
        for name, writes in cases():
            times = measure_case(ours, theirs, writes, repeats=repeats)
            yield describe(transport, name, writes[0].total_bytes, times)
    finally:
        ours.close()
        theirs.close()
