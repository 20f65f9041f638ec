"""The flags that describe a load, and the load that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.bench.serve import Load
from headrace.bench.workload import TraceOptions, made_up, read_trace
from headrace.core.errors import ConfigError

_LOAD = "Load"
DEFAULT_REQUESTS = 256
DEFAULT_CONCURRENCY = 64

Url = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Load a server that runs already, instead of one of this deployment.",
        rich_help_panel=_LOAD,
    ),
]
ApiKey = Annotated[str, typer.Option(metavar="KEY", help="Its key.", rich_help_panel=_LOAD)]
Concurrency = Annotated[
    int,
    typer.Option(
        metavar="COUNT",
        min=0,
        help="Closed loop: requests in flight. 0 with --rate or --trace is an open loop.",
        rich_help_panel=_LOAD,
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        metavar="PER_SECOND",
        min=0.0,
        help="Open loop: Poisson arrivals a second.",
        rich_help_panel=_LOAD,
    ),
]
NumRequests = Annotated[
    int,
    typer.Option(
        "--requests",
        metavar="COUNT",
        min=0,
        help="Requests to send: 256, or the whole trace, when not given.",
        rich_help_panel=_LOAD,
    ),
]
PromptTokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS",
        min=1,
        help="Prompt of each; of a trace, the longest.",
        rich_help_panel=_LOAD,
    ),
]
OutputTokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS",
        min=1,
        help="Output of each; of a trace, the longest.",
        rich_help_panel=_LOAD,
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Requests as somebody really sent them: Azure's CSV, Mooncake's JSON lines, "
        "also gzipped.",
        rich_help_panel=_LOAD,
    ),
]
Speed = Annotated[
    float,
    typer.Option(
        metavar="FACTOR", min=1e-3, help="On the trace's arrivals.", rich_help_panel=_LOAD
    ),
]
Scale = Annotated[
    float,
    typer.Option(metavar="FACTOR", min=1e-6, help="On the trace's lengths.", rich_help_panel=_LOAD),
]
Seed = Annotated[
    int, typer.Option(metavar="SEED", help="Of all that is made up.", rich_help_panel=_LOAD)
]


def lengths(
    max_requests: int, prompt: int, output: int, speed: float, scale: float, seed: int
) -> TraceOptions:
    """Return the flags about number and lengths as one value."""
    return TraceOptions(
        max_requests=max_requests,
        speed=speed,
        scale=scale,
        max_prompt_tokens=prompt,
        max_output_tokens=output,
        seed=seed,
    )


def make_load(
    trace: Path | None, options: TraceOptions, *, concurrency: int, rate: float
) -> tuple[str, Load]:
    """Return the name of a load's case, and the load.

    Args:
        trace: File to take arrivals and lengths from; None makes requests of one size up.
        options: Lengths, number and seed, of a trace or of what is made up.
        concurrency: Requests in flight of a closed loop; 0 for an open one, or the default.
        rate: Poisson arrivals a second of an open loop; 0 for none.

    Raises:
        ConfigError: Contradicting flags, or a trace that cannot be read.
    """
    if concurrency and rate:
        raise ConfigError("--concurrency beside --rate: a loop is closed or open; give one")
    if trace is not None:
        if rate:
            raise ConfigError("--rate beside --trace: a trace has arrivals; scale them by --speed")
        return f"trace/{trace.name}", Load(read_trace(trace, options), concurrency)
    requests = made_up(
        options.max_requests or DEFAULT_REQUESTS,
        prompt_tokens=options.max_prompt_tokens,
        output_tokens=options.max_output_tokens,
        rate=rate,
        seed=options.seed,
    )
    if rate:
        return f"rate/{rate:g}", Load(requests)
    concurrency = concurrency or DEFAULT_CONCURRENCY
    return str(concurrency), Load(requests, concurrency)
