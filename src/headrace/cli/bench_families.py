"""Flags and printing that ``headrace bench kernels`` and ``headrace bench attention`` share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.bench.plot import plot_fractions
from headrace.bench.rows import Row, print_rows, write_rows
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.device.measure import CaseResult

Device = Annotated[str, typer.Option(metavar="cuda:N", help="Device to measure.")]
Matching = Annotated[
    str,
    typer.Option(
        "--case", metavar="TEXT", help="Only cases with this in their name.", show_default=False
    ),
]
Replays = Annotated[
    int, typer.Option(metavar="COUNT", min=1, help="Timed replays of each kernel, at most.")
]
Json = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append the rows as JSON lines.", show_default=False),
]
Png = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the achieved fractions.", show_default=False),
]

COLUMNS = {
    "case": "case",
    "kernel": "kernel",
    "is_chosen": "",
    "p50_us": "p50 [us]",
    "p99_us": "p99 [us]",
    "floor_us": "floor [us]",
    "fraction": "of floor",
    "cache": "",
    "gb_s": "GB/s",
    "tflop_s": "TFLOP/s",
    "ratio": "speed-up",
    "baseline": "over",
}
_TIMES = ("p50_us", "p99_us", "floor_us")


def measure_families(
    name: str,
    families: Sequence[str],
    *,
    device: str,
    matching: str,
    replays: int,
    json: Path | None,
    png: Path | None,
) -> None:
    """Run a device bench, print a table a family, keep the rows.

    Rows are kept as they come, so that a run that is cut off leaves what it has measured.

    Raises:
        ConfigError: Nothing can be measured here, or a file cannot be written.
        Exit: With code 1, when a kernel raised; the others have their rows.
    """
    # Here, since it imports torch, which no other command should wait for.
    from headrace.bench.device.run import run_bench

    if json is not None:
        _check_writable(json)
    results = run_bench(name, families, device=device, matching=matching, num_replays=replays)
    rows, failures = report(results, json, console=Console(highlight=False))
    for line in failures:
        typer.echo(line, err=True)
    if png is not None and rows:
        plot_fractions(rows, png)
    if failures:
        raise typer.Exit(1)


def report(
    results: Iterable[CaseResult], path: Path | None, *, console: Console
) -> tuple[list[Row], list[str]]:
    """Print results family by family, and append their rows to a file.

    Returns:
        All rows, and one line for each kernel that raised.
    """
    rows: list[Row] = []
    failures: list[str] = []
    for family, of_family in groupby(results, key=lambda result: result.case.partition("/")[0]):
        table: list[Row] = []
        declined: dict[str, str] = {}
        for result in of_family:
            if path is not None:
                write_rows(result.rows, path)
            table += map(_shown, result.rows)
            rows += result.rows
            declined |= {f"{kernel}: {reason}": "" for kernel, reason in result.declined.items()}
            failures += [f"{result.case} {k}: {reason}" for k, reason in result.failed.items()]
        print_rows(table, COLUMNS, console=console)
        for line in declined:
            console.print(f"{family}: some cases without {line}", soft_wrap=True, markup=False)
        console.print()
    return rows, failures


def _check_writable(path: Path) -> None:
    # Asked before, not after, minutes of measuring.
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error}") from error


def _shown(row: Row) -> Row:
    # A table wants fewer digits than a file keeps.
    times_us = {key: round(row[key], 1 if row[key] >= 100 else 2) for key in _TIMES}
    marks = {
        "is_chosen": "*" if row["variant"] == "headrace" else None,
        # A floor of the memory says little of inputs that may come out of the cache.
        "cache": "L2" if row.get("may_be_cached") else None,
    }
    return {**row, **times_us, **marks}
