"""``headrace bench kernels``: every device kernel beside its floor and what it replaces."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import bench_families as flags

Families = Annotated[
    list[str] | None,
    typer.Option(
        "--family",
        metavar="NAME",
        help="A family of kernels, such as route; repeatable; all when not given.",
        show_default=False,
    ),
]


def kernels(
    family: Families = None,
    matching: flags.Matching = "",
    device: flags.Device = "cuda:0",
    replays: flags.Replays = 100,
    json: flags.Json = None,
    png: flags.Png = None,
) -> None:
    """Time each kernel of a device engine, as a share of its floor and beside other libraries.

    Example: headrace bench kernels --family grouped_experts --json rows.jsonl
    """
    flags.measure_families(
        "kernels",
        family or [],
        device=device,
        matching=matching,
        replays=replays,
        json=json,
        png=png,
    )
