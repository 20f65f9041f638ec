"""``headrace kernels explain``: which kernel runs where, and why the others do not."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import options
from headrace.cli.source import resolve_model
from headrace.core.errors import ConfigError

app = typer.Typer(help="What computes a step, and why.")


@app.callback()
def _kernels() -> None:
    """Keep `explain` a command of its own while it is the only one."""


@app.command()
def explain(
    model: options.Model = "",
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu or cuda; by default what is there.")
    ] = "",
    rows: Annotated[
        str, typer.Option(metavar="LIST", help="Rows of the steps, by commas.")
    ] = "1,32,256,4096",
    block_size: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of a KV block.")] = 128,
) -> None:
    """Print each kernel family's choice for a device engine, and every refusal before it."""
    import torch

    from headrace.kernels.site import detect_site
    from headrace.models.device.kernels import choose_kernels, model_sizes

    config = resolve_model(model or "tiny").config
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device!r}: expected cpu or cuda")
    dtype = "bfloat16" if name == "cuda" else "float32"
    site = detect_site(name, dtype=dtype, sizes=model_sizes(config, block_size=block_size))
    console = Console(highlight=False)
    console.print(
        f"{name}, capability {site.capability[0]}.{site.capability[1]}, {dtype}; "
        f"found: {', '.join(sorted(site.libraries)) or 'no kernel library'}",
        soft_wrap=True,
    )
    for number in options.numbers(rows, "--rows"):
        console.print(f"\n{number} rows")
        for place, choice in choose_kernels(site, num_tokens=number).items():
            console.print(f"  {place}: {choice.variant.name}", markup=False, soft_wrap=True)
            for refused, reason in choice.declined:
                console.print(f"    not {refused}: {reason}", markup=False, soft_wrap=True)
