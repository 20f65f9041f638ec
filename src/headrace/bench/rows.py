"""Results of measurements: one row each, the same for every bench; as table and as JSON lines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# What a row holds besides what its bench measured: see `make_row`.
Row = dict[str, Any]
_PACKAGES = ("headrace", "torch", "numpy")


def make_row(bench: str, case: str, variant: str = "headrace", **measured: Any) -> Row:
    """Return a row with what every row says: where it was measured, and of what.

    Args:
        bench: The bench, such as ``transfer``.
        case: What was measured, its parts joined by slashes.
        variant: ``headrace``, or the name of what it is compared with.
        measured: ``value`` and ``unit``, or ``p50_us`` and ``p99_us``; where they exist
            ``bytes``, ``floor_us``, ``fraction``, ``baselines``, ``ratio``.
    """
    return {
        "bench": bench,
        "case": case,
        "variant": variant,
        **measured,
        "machine": machine(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": commit(),
    }


def machine() -> str:
    """Return what was measured on, in words."""
    return f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


def commit(start: Path | None = None) -> str:
    """Return the commit of the checkout that ``start`` (this file) lies in; empty outside one."""
    for folder in (start or Path(__file__).resolve()).parents:
        head = folder / ".git" / "HEAD"
        if head.is_file():
            return _resolve(head)
    return ""


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Append rows to a file of JSON lines."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def print_rows(rows: Iterable[Row], columns: Mapping[str, str], *, console: Console) -> None:
    """Print rows as a table.

    Args:
        rows: What to print.
        columns: Heading of each column by the key of the row that it shows.
        console: Where to print.
    """
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(columns.values()):
        table.add_column(heading, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(_text(row.get(key)) for key in columns))
    console.print(table)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _resolve(head: Path) -> str:
    text = head.read_text().strip()
    reference = head.parent / text.removeprefix("ref: ")
    if text.startswith("ref: ") and reference.is_file():
        text = reference.read_text().strip()
    return "" if text.startswith("ref: ") else text[:12]
