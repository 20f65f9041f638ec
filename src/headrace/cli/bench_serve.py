"""``headrace bench serve``: what clients see of a server under load."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.bench.plot import plot_serve
from headrace.bench.rows import write_rows
from headrace.bench.serve import Load, run_load
from headrace.bench.summary import Slo, Summary, compare, describe, summarise, to_row
from headrace.cli import bench_load as load
from headrace.cli import options
from headrace.cli.bench_server import serving
from headrace.core.errors import ConfigError
from headrace.deployment import DeploymentConfig, ReplicaConfig

_RESULT = "Result"

SloText = Annotated[
    str,
    typer.Option(
        metavar="BOUNDS",
        help="What counts as goodput, in seconds: ttft=1,itl=0.1.",
        rich_help_panel=_RESULT,
    ),
]
Versus = Annotated[
    str,
    typer.Option(
        "--compare",
        metavar="mono",
        help="Run the same load on as many mono ranks too, and say whether to split.",
        rich_help_panel=_RESULT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append the rows as JSON lines.", rich_help_panel=_RESULT),
]
Png = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the percentiles.", rich_help_panel=_RESULT),
]


def serve(
    model: options.Model = "",
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    dtype: options.Dtype = "",
    exact: options.Exact = None,
    settings: options.Settings = None,
    url: load.Url = "",
    api_key: load.ApiKey = "",
    concurrency: load.Concurrency = 0,
    rate: load.Rate = 0.0,
    num_requests: load.NumRequests = 0,
    prompt_tokens: load.PromptTokens = 128,
    output_tokens: load.OutputTokens = 64,
    trace: load.TraceFile = None,
    speed: load.Speed = 1.0,
    scale: load.Scale = 1.0,
    seed: load.Seed = 0,
    slo: SloText = "ttft=1,itl=0.1",
    versus: Versus = "",
    out: Out = None,
    png: Png = None,
) -> None:
    """Load a server with streaming requests and print what its clients saw.

    Example: headrace bench serve --prefill tp=1 --decode dp=1 --trace T.csv.gz --compare mono
    """
    bounds = parse_slo(slo)
    _check(versus, url=url, out=out, png=png)
    case, work = load.make_load(
        trace,
        load.lengths(num_requests, prompt_tokens, output_tokens, speed, scale, seed),
        concurrency=concurrency,
        rate=rate,
    )
    deployment = options.deployment_from_flags(
        model,
        config=config,
        prefill=prefill,
        decode=decode,
        mono=mono,
        transport=transport,
        dtype=dtype,
        exact=exact,
        settings=settings,
    )
    sides = {"headrace": url} if url else _sides(deployment, versus)
    summaries = _measure_all(work, bounds, sides, api_key=api_key)
    _report(summaries, bounds, versus=versus)
    _keep(summaries, case, out, png)


def as_mono(split: DeploymentConfig) -> DeploymentConfig:
    """Return a deployment of as many mono replicas as a split one has ranks.

    Raises:
        ConfigError: The deployment is not split.
    """
    if split.prefill is None or split.decode is None:
        raise ConfigError("--compare mono: give a split deployment, with --prefill and --decode")
    num_ranks = sum(role.tp * role.dp * role.replicas for role in (split.prefill, split.decode))
    mono = ReplicaConfig(dp=1, ep=1, replicas=num_ranks)
    return msgspec.structs.replace(split, prefill=None, decode=None, mono=mono)


def parse_slo(text: str) -> Slo:
    """Read ``ttft=SECONDS,itl=SECONDS``; what is left out keeps its default.

    Raises:
        ConfigError: Neither of the two names, or not a number above 0.
    """
    given: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            given[f"{name.strip()}_s"] = float(value)
        except ValueError:
            given[f"{name.strip()}_s"] = -1.0
    if not given or given.keys() - {"ttft_s", "itl_s"} or not min(given.values()) > 0:
        raise ConfigError(f"--slo {text!r}: expected seconds above 0, such as ttft=1,itl=0.1")
    return Slo(**given)


def _check(versus: str, *, url: str, out: Path | None, png: Path | None) -> None:
    """Refuse before the load what would fail after it."""
    if versus not in ("", "mono"):
        raise ConfigError(f"--compare {versus!r}: expected mono")
    if versus and url:
        raise ConfigError("--compare beside --url: it starts both deployments itself; leave --url")
    for flag, path in (("--out", out), ("--png", png)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{flag} {path}: there is no folder {path.absolute().parent}")


def _report(summaries: dict[str, Summary], bounds: Slo, *, versus: str) -> None:
    for name, each in summaries.items():
        typer.echo(f"{name}: {describe(each, bounds)}")
    if versus:
        typer.echo(compare(summaries["split"], summaries["mono"]))


def _keep(summaries: dict[str, Summary], case: str, out: Path | None, png: Path | None) -> None:
    rows = [to_row(each, case=case, variant=name) for name, each in summaries.items()]
    if out is not None:
        write_rows(rows, out)
    if png is not None:
        plot_serve(rows, png)


def _sides(deployment: DeploymentConfig, versus: str) -> dict[str, DeploymentConfig]:
    if versus:
        return {"split": deployment, "mono": as_mono(deployment)}
    return {"headrace": deployment}


def _measure_all(
    work: Load,
    bounds: Slo,
    sides: Mapping[str, DeploymentConfig | str],
    *,
    api_key: str,
) -> dict[str, Summary]:
    """Load each side in turn: a server's address, or a deployment that is served for the load."""
    summaries = {}
    for name, side in sides.items():
        if isinstance(side, str):
            summaries[name] = _measure(work, bounds, url=side, api_key=api_key)
        else:
            with serving(side) as address:
                summaries[name] = _measure(work, bounds, url=address, api_key="")
    return summaries


def _measure(work: Load, bounds: Slo, *, url: str, api_key: str) -> Summary:
    # A collection in the middle of a load would be counted as the server's delay.
    gc.collect()
    gc.freeze()
    return summarise(run_load(work, url=url, api_key=api_key), bounds)
