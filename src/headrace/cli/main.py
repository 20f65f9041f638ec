"""The ``headrace`` command: one file a subcommand, all of them registered here."""

from __future__ import annotations

import sys

import typer

from headrace import __version__
from headrace.cli import chat, config, demo, load, serve, transfer, verify
from headrace.core.errors import HeadraceError, UserError

app = typer.Typer(
    name="headrace",
    help="Serve Qwen3 Mixture-of-Experts models with prefill and decode apart.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("verify")(verify.verify)
app.command("load")(load.load)
app.add_typer(transfer.app, name="transfer")
app.add_typer(config.app, name="config")


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def run() -> None:
    """Entry point: one clear line for what a person can mend, exit code 2; 1 for the rest."""
    try:
        app()
    except UserError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(2)
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(1)
