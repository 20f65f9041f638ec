"""What a deployment holds on the machine and in its pools, so that a leak shows as a difference."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

SEGMENTS = Path("/dev/shm")
PROC = Path("/proc")

# Gauges of a rank that are zero when it has nothing to do and nothing to wait for.
IDLE_GAUGES = (
    "headrace_running",
    "headrace_waiting",
    "headrace_rank_pool_pinned_blocks",
    "headrace_rank_pool_quarantined_blocks",
)


# A process connects to a peer when it first has something to say, such as a decode rank that wakes
# another: so many more of these than before, one for each peer, are no leak.
LAZY_KINDS = ("socket", "eventfd")


@dataclass(frozen=True, slots=True)
class Census:
    """Counts by process (or ``deployment``) and kind, such as ``("prefill0.1", "socket")``."""

    counts: Mapping[tuple[str, str], int]

    def more_than(self, before: Census) -> list[str]:
        """Return in words what there is more of than before."""
        num_peers = len({name for name, _ in self.counts}) - 2
        found = []
        for (name, kind), now in self.counts.items():
            was = before.counts.get((name, kind), 0)
            if now > was + (num_peers if kind in LAZY_KINDS else 0):
                found.append(f"{name} has {now} {kind}, {was} before")
        return found


def take_census(pids: Mapping[str, int], *, run_dir: Path) -> Census:
    """Count what the processes of a deployment, and the deployment itself, hold open.

    Args:
        pids: Processes by name; the caller's own among them.
        run_dir: The deployment's folder, whose name begins its segments'.
    """
    counts = Counter[tuple[str, str]]()
    for name, pid in pids.items():
        counts[name, "thread"] = len(list((PROC / str(pid) / "task").iterdir()))
        for kind, number in _descriptors(pid).items():
            counts[name, kind] = number
    counts["deployment", "segment"] = sum(
        one.name.startswith(run_dir.name) for one in SEGMENTS.iterdir()
    )
    # A flight record is kept on purpose: one file a rank and generation, written over.
    counts["deployment", "run file"] = sum(
        not one.name.startswith("flight-") for one in run_dir.iterdir()
    )
    return Census(counts)


def _descriptors(pid: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for link in (PROC / str(pid) / "fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        # Such as ``socket:[123]``, ``anon_inode:[eventfd]`` or ``/dev/shm/name``.
        kind, _, inside = target.partition(":[")
        kinds[{"anon_inode": inside.rstrip("]")}.get(kind, kind if inside else "file")] += 1
    return kinds


def find_work(metrics: str) -> list[str]:
    """Return what says, in a page of metrics, that some rank is not idle with all blocks back."""
    families = {one.name: one.samples for one in text_string_to_metric_families(metrics)}
    found = [
        f"{name} of {_rank(sample.labels)} is {sample.value:g}"
        for name in IDLE_GAUGES
        for sample in families.get(name, [])
        if sample.value
    ]
    total = {_rank(one.labels): one.value for one in families.get("headrace_total_blocks", [])}
    for sample in families.get("headrace_free_blocks", []):
        rank = _rank(sample.labels)
        if sample.value != total.get(rank):
            found.append(f"{rank} has {sample.value:g} of {total.get(rank)} blocks")
    return found if total else ["no rank has been heard"]


def _rank(labels: Mapping[str, str]) -> str:
    return f"{labels['replica']}.{labels['rank']}"
