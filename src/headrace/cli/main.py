"""The ``headrace`` command: one file a subcommand, all of them registered here.

Exit codes: 0 done, 1 something broke (a rank died), 2 something a person can mend, 130 and 143
ended by Ctrl-C and by SIGTERM. What a person can mend is one line on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace import __version__
from headrace.cli import (
    agent,
    bench,
    chat,
    config,
    demo,
    doctor,
    kernels,
    load,
    serve,
    transfer,
    verify,
)
from headrace.core.errors import HeadraceError, UserError

# Typer brings its own click or uses the installed one, depending on its version.
ClickException: Any = typer.BadParameter.__mro__[2]

EXIT_BROKEN = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="headrace",
    help="Serve Qwen3 Mixture-of-Experts models with prefill and decode apart.",
    epilog="Start with: headrace demo",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("agent")(agent.agent)
app.command("chat")(chat.chat)
app.command("verify")(verify.verify)
app.command("doctor")(doctor.doctor)
app.command("load")(load.load)
app.add_typer(bench.app, name="bench")
app.add_typer(transfer.app, name="transfer")
app.add_typer(config.app, name="config")
app.add_typer(kernels.app, name="kernels")


@app.callback(invoke_without_command=True)
def headrace(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    """Serve Qwen3 Mixture-of-Experts models with prefill and decode apart."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command("version")
def print_version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        args: Words after the program's name; None takes the process's own.
    """
    try:
        code = app(args, prog_name="headrace", standalone_mode=False)
    except UserError as error:
        return _refuse(str(error), EXIT_USER)
    except HeadraceError as error:
        return _refuse(str(error), EXIT_BROKEN)
    except ClickException as error:
        return _refuse(_usage_message(error), EXIT_USER)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the installed command."""
    sys.exit(main())


def _refuse(message: str, code: int) -> int:
    # One line whatever the message: scripts read it, and so do logs.
    typer.echo(f"headrace: {' '.join(message.split())}", err=True)
    return code


def _usage_message(error: Any) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if context is not None else message


if __name__ == "__main__":
    run()
