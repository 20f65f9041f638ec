"""How much memory a set of processes takes together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def total_pss_bytes(pids: Iterable[int], *, proc: Path = PROC) -> int:
    """Return the proportional set size of processes: a page that k of them share counts 1/k each.

    Args:
        pids: Processes of this user; one that has ended counts nothing.
        proc: Where the kernel describes processes.

    Returns:
        Bytes; 0 where the kernel does not say.
    """
    return sum(_pss_bytes(proc / str(pid) / "smaps_rollup") for pid in pids)


def _pss_bytes(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
