"""``headrace bench transfer``: how fast KV moves, and how much of it a request waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.bench.rows import Row, print_rows, write_rows
from headrace.bench.transfer import BASELINES, measure
from headrace.bench.transfer_exposed import describe_exposed, measure_exposed
from headrace.core.errors import ConfigError

Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append the rows as JSON lines."),
]
COLUMNS = {
    "case": "case",
    "p50_us": "p50 [us]",
    "floor_us": "baseline [us]",
    "value": "GB/s, or share",
    "ratio": "of baseline",
}


def transfer(
    transport: Annotated[
        str, typer.Option(metavar="NAME", help="shm or tcp; both when not given.")
    ] = "",
    repeats: Annotated[
        int, typer.Option(metavar="COUNT", min=1, help="Alternated pairs of runs.")
    ] = 11,
    exposed: Annotated[
        bool,
        typer.Option(
            "--exposed",
            help="Instead: the part of time to first token that transfer adds to a long prompt.",
        ),
    ] = False,
    out: Out = None,
) -> None:
    """Move KV between two processes: shm beside memcpy, tcp beside a plain socket."""
    chosen = [transport] if transport else list(BASELINES)
    if unknown := set(chosen) - BASELINES.keys():
        raise ConfigError(f"--transport {unknown.pop()!r}: expected {' or '.join(BASELINES)}")
    rows: list[Row] = []
    for name in chosen:
        if exposed:
            rows.append(describe_exposed(name, asyncio.run(measure_exposed(name))))
        else:
            rows += measure(name, repeats=repeats)
    _report(rows, out)


def _report(rows: list[Row], out: Path | None) -> None:
    print_rows(rows, COLUMNS, console=Console(highlight=False))
    if out is not None:
        write_rows(rows, out)
