"""``headrace load --check``: is this folder a checkpoint that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.cli.source import EMBEDDED
from headrace.core.errors import ConfigError
from headrace.models.embedded import embedded_folder

Folder = Annotated[
    str, typer.Argument(metavar="DIR|tiny", help="Model folder; 'tiny' is the embedded model.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Check every file against the config; start nothing.")
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Also read every value: all must be finite numbers.")
]


def load(folder: Folder, check: Check = False, deep: Deep = False) -> None:
    """Check a model folder as strictly as serving it would, without building the model.

    Every tensor must be used once and every parameter filled once, in the right shape. Without
    --deep only headers are read, which takes seconds for any checkpoint.

    Example: headrace load --check ~/Qwen3-30B-A3B
    """
    if not check:
        raise ConfigError("load only checks so far: say 'headrace load --check DIR'")
    # Torch comes with it, and no other command should wait for that.
    from headrace.models.checkpoint.check import check_checkpoint

    path = embedded_folder() if folder == EMBEDDED else Path(folder)
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bars:
        task = bars.add_task("reading", total=None, visible=deep)

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            bars.update(task, completed=done_bytes, total=total_bytes)

        report = check_checkpoint(path, deep=deep, on_progress=on_progress)
    typer.echo(report.format())
