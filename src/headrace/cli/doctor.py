"""``headrace doctor``: can this machine run that deployment, asked before anything is started."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.cli import options
from headrace.cli.needs import needs_of
from headrace.cli.source import check_files, resolve_model
from headrace.cluster.doctor.checks import check_all
from headrace.cluster.doctor.finding import Finding, Level
from headrace.cluster.doctor.machine import ThisMachine

Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default=False)
]
Port = Annotated[
    int | None, typer.Option(metavar="PORT", help="Port; 0 takes a free one.", show_default=False)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the findings as JSON instead of a table.")
]

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def doctor(
    model: options.Model = "",
    config: options.ConfigFile = None,
    prefill: options.Prefill = "",
    decode: options.Decode = "",
    mono: options.Mono = "",
    transport: options.Transport = "",
    key_file: options.KeyFile = "",
    host: Host = "",
    port: Port = None,
    dtype: options.Dtype = "",
    exact: options.Exact = None,
    block_size: options.BlockSize = None,
    settings: options.Settings = None,
    as_json: Json = False,
) -> None:
    """Check whether this machine can run a deployment; start nothing.

    Takes what 'headrace serve' takes. Exit code 0 when nothing fails, 1 otherwise.

    Example: headrace doctor --config deploy.toml
    """
    resolved = options.deployment_from_flags(
        model,
        config=config,
        prefill=prefill,
        decode=decode,
        mono=mono,
        transport=transport,
        key_file=key_file,
        dtype=dtype,
        exact=exact,
        block_size=block_size,
        settings=settings,
        serving={"host": host, "port": port},
    )
    source = resolve_model(resolved.model)
    check_files(source)
    findings = check_all(needs_of(resolved, source), ThisMachine())
    if as_json:
        typer.echo(format_json(findings))
    else:
        print_table(findings, Console(highlight=False))
    if not is_fit(findings):
        raise typer.Exit(1)


def is_fit(findings: list[Finding]) -> bool:
    """Whether the deployment can run: warnings are no reason against it."""
    return all(finding.level is not Level.FAIL for finding in findings)


def format_json(findings: list[Finding]) -> str:
    """Return the findings and the verdict as one JSON object."""
    return msgspec.json.encode({"is_fit": is_fit(findings), "findings": findings}).decode()


def print_table(findings: list[Finding], console: Console) -> None:
    """Print one row a finding, then what to do and the verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", "check", "expected", "found"):
        table.add_column(heading, overflow="fold")
    for one in findings:
        style = _STYLES[one.level]
        table.add_row(f"[{style}]{one.level}[/]", one.name, one.expected, one.found)
    console.print(table)
    for one in findings:
        if one.action:
            console.print(f"{one.level} {one.name}: {one.action}", soft_wrap=True, markup=False)
    counts = [sum(one.level is level for one in findings) for level in (Level.FAIL, Level.WARN)]
    verdict = "can run" if is_fit(findings) else "cannot run"
    console.print(
        f"this machine {verdict} the deployment: {counts[0]} failed, {counts[1]} warnings",
        soft_wrap=True,
    )
