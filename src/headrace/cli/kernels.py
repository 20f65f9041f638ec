"""``headrace kernels explain``: which kernel runs where, and why the others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headrace.cli import options
from headrace.cli.source import resolve_model
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.kernels.catalogue import Choice, Site

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
    from headrace.models.device.kernels import model_sizes

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
        for place, choice in _choices(site, num_tokens=number).items():
            console.print(f"  {place}: {choice.variant.name}", markup=False, soft_wrap=True)
            for refused, reason in choice.declined:
                console.print(f"    not {refused}: {reason}", markup=False, soft_wrap=True)


def _choices(site: Site, *, num_tokens: int) -> dict[str, Choice[Any]]:
    """Choose for every place in a model, and for the families that are called outside of it.

    A place that is not named like its family is followed by the family's name.
    """
    from headrace.kernels.catalogue import choose
    from headrace.kernels.families import DEVICE_FAMILIES
    from headrace.models.device.kernels import choose_kernels

    choices = choose_kernels(site, num_tokens=num_tokens)
    named = {
        place if place == choice.family.name else f"{place} ({choice.family.name})": choice
        for place, choice in choices.items()
    }
    covered = {choice.family.name for choice in choices.values()}
    sized = replace(site, sizes={**site.sizes, "num_tokens": num_tokens})
    others = (family for family in DEVICE_FAMILIES if family.name not in covered)
    return named | {family.name: choose(family, sized) for family in others}
