"""``headrace bench decode`` and ``bench prefill``: a whole model on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.bench.rows import Row, print_rows, write_rows
from headrace.cli import options
from headrace.core.launch import EngineConfig
from headrace.models.checkpoint.folder import read_config

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model folder; its config.json is enough.")
]
BlockSize = Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of a KV block.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Append the rows as JSON lines.")]
COLUMNS = {
    "case": "case",
    "value": "tokens/s",
    "p50_us": "p50 [us]",
    "p99_us": "p99 [us]",
    "floor_us": "floor [us]",
    "fraction": "of floor",
}


def decode(
    model: Folder,
    batch: Annotated[
        str, typer.Option(metavar="LIST", help="Batch sizes, by commas.")
    ] = "1,8,32,128,256",
    context: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of a sequence.")] = 1024,
    block_size: BlockSize = 128,
    operators: Annotated[
        bool, typer.Option("--operators", help="Print each batch's time by operator.")
    ] = False,
    out: Out = None,
) -> None:
    """Time decode steps with random weights, beside the floor that memory sets."""
    from headrace.bench.device.ceilings import measure_ceilings
    from headrace.bench.device.decode import DecodeCase, run_decode

    console = Console(highlight=False, width=120)
    cases = [DecodeCase(batch=size, context=context) for size in options.numbers(batch, "--batch")]
    backend = _load(model, block_size=block_size, max_tokens=context + 256)
    ceilings = measure_ceilings()
    console.print(f"ceilings: {ceilings}")
    bench, rows = run_decode(backend, cases, ceilings, block_size=block_size)
    hits = {"experts_hit": "experts hit", "experts_hit_expected": "expected", "is_void": "void"}
    _report(rows, {**COLUMNS, **hits}, console, out)
    for case in cases if operators else ():
        console.print(f"batch {case.batch}:")
        for name, us, count in bench.profile(case)[:16]:
            console.print(f"  {us:9.1f} us  x{count:<4d} {name[:90]}", markup=False)


def prefill(
    model: Folder,
    tokens: Annotated[
        str, typer.Option(metavar="LIST", help="Lengths of single prompts, by commas.")
    ] = "1000,2000,4000,6000,8000,16000,32000",
    batched: Annotated[
        str, typer.Option(metavar="LIST", help="Prompts of 1000 tokens in a step, by commas.")
    ] = "8,16",
    block_size: BlockSize = 128,
    out: Out = None,
) -> None:
    """Time prefill steps with random weights, and fit the rate that a fleet is sized by."""
    from headrace.bench.device.ceilings import measure_ceilings
    from headrace.bench.device.prefill import fit_prompt_time, run_prefill

    console = Console(highlight=False, width=120)
    singles = options.numbers(tokens, "--tokens")
    batches = [[n] for n in singles] + [[1000] * n for n in options.numbers(batched, "--batched")]
    backend = _load(model, block_size=block_size, max_tokens=max(singles))
    ceilings = measure_ceilings()
    console.print(f"ceilings: {ceilings}")
    rows = run_prefill(backend, batches, ceilings, block_size=block_size)
    _report(rows, COLUMNS, console, out)
    if len(set(singles)) > 2:
        points = [(n, row["p50_us"] * 1e-6) for n, row in zip(singles, rows, strict=False)]
        fixed, per_token, per_pair = fit_prompt_time(points)
        console.print(
            f"one prompt of n tokens: {fixed * 1e3:.1f} ms + {per_token * 1e6:.2f} us n + "
            f"{per_pair * 1e9:.3f} ns n^2"
        )


def _load(folder: Path, *, block_size: int, max_tokens: int):
    from headrace.engine.device.load import load_device

    engine = EngineConfig(
        device="cuda", load_format="random", dtype="bfloat16", exact=False, block_size=block_size
    )
    return load_device(folder, read_config(folder), engine, max_tokens=max_tokens)


def _report(rows: list[Row], columns: dict[str, str], console: Console, out: Path | None) -> None:
    print_rows(rows, columns, console=console)
    if out is not None:
        write_rows(rows, out)
