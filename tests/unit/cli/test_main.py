"""The commands as a whole: their flags, their exit codes, and the page about them."""

import re
from pathlib import Path

import pytest
import typer

from headrace import __version__
from headrace.cli import main as cli
from headrace.core.errors import ConfigError, ReplicaError

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
DEPLOYMENT = ["--config", "--prefill", "--decode", "--mono", "--set"]
ENGINE = ["--transport", "--key-file", "--dtype", "--exact", "--no-exact", "--block-size"]
# The command line is a promise: this list changes together with docs/cli.md and the changelog.
FLAGS = {
    "headrace": ["--version"],
    "headrace demo": ["--max-tokens", "--seed"],
    "headrace serve": [
        *DEPLOYMENT,
        *ENGINE,
        *("--device", "--load-format", "--kv-dtype"),
        *("--host", "--port", "--api-key", "--name", "--chaos", "--log-level"),
    ],
    "headrace agent": ["--listen", "--key-file", "--new-key", "--log-level"],
    "headrace chat": [
        *DEPLOYMENT,
        *("--url", "--api-key", "--name", "--system"),
        *("--max-tokens", "--temperature", "--seed", "--think", "--no-think"),
    ],
    "headrace verify": [
        *DEPLOYMENT,
        *ENGINE,
        *("--device", "--load-format", "--kv-dtype"),
        *("--against", "--prompts", "--max-tokens", "--seed", "--json"),
    ],
    "headrace doctor": [*DEPLOYMENT, *ENGINE, "--host", "--port", "--json"],
    "headrace load": ["--check", "--deep"],
    "headrace version": [],
    "headrace config": [],
    "headrace config show": [*DEPLOYMENT, *ENGINE],
    "headrace bench": [],
    "headrace bench decode": ["--batch", "--context", "--block-size", "--operators", "--out"],
    "headrace bench prefill": ["--tokens", "--batched", "--block-size", "--out"],
    "headrace bench kernels": ["--family", "--case", "--device", "--replays", "--json", "--png"],
    "headrace bench attention": ["--case", "--device", "--replays", "--json", "--png"],
    "headrace kernels": [],
    "headrace kernels explain": ["--device", "--rows", "--block-size"],
    "headrace bench transfer": ["--transport", "--repeats", "--exposed", "--out"],
    "headrace bench serve": [
        *DEPLOYMENT,
        *("--transport", "--dtype", "--exact", "--no-exact", "--url", "--api-key"),
        *("--concurrency", "--rate", "--requests", "--prompt-tokens", "--output-tokens"),
        *("--trace", "--speed", "--scale", "--seed", "--slo", "--compare", "--out", "--png"),
    ],
    "headrace transfer": [],
    "headrace transfer explain": [
        *("--model", "--kv-heads", "--head-dim", "--layers", "--dtype"),
        *("--prefill", "--decode", "--tokens", "--start", "--prefill-block", "--decode-block"),
        *("--scatter", "--transport", "--svg"),
    ],
}


def commands(command, name: str):
    yield name, command
    for child, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {child}")


def long_flags(command) -> list[str]:
    return [
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--") and flag != "--help"
    ]


COMMANDS = dict(commands(typer.main.get_command(cli.app), "headrace"))


def test_the_commands_and_their_flags_are_these() -> None:
    assert {name: sorted(long_flags(command)) for name, command in COMMANDS.items()} == {
        name: sorted(flags) for name, flags in FLAGS.items()
    }


def test_the_page_names_every_command_and_every_flag_and_no_other() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - {"--help"}
    assert named == {flag for flags in FLAGS.values() for flag in flags}
    for name in FLAGS:
        assert name in page


@pytest.mark.parametrize("name", FLAGS)
def test_every_command_and_flag_is_explained(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", ""), f"{name} {parameter.name}"


def test_the_help_of_every_command_works(capsys: pytest.CaptureFixture[str]) -> None:
    for name in FLAGS:
        assert cli.main([*name.split()[1:], "--help"]) == 0
        assert "Usage: headrace" in capsys.readouterr().out


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "headrace demo" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["version"], ["--version"]])
def test_the_version_is_printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("port=x: expected\na number"), 2, "headrace: port=x: expected a number\n"),
        (ReplicaError("decode0.1 died"), 1, "headrace: decode0.1 died\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(143), 143, ""),
    ],
    ids=["user", "broken", "ctrl-c", "signal"],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("headrace.cli.config.format_config", fail)
    assert cli.main(["config", "show"]) == code
    assert capsys.readouterr() == ("", line)


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("headrace.cli.config.format_config", fail)
    with pytest.raises(LookupError, match="a bug"):
        cli.main(["config", "show"])


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["serv"], r"headrace: No such command 'serv'.*'serve'.*; see 'headrace --help'\n"),
        (["serve", "--prefil", "tp=2"], r"headrace: No such option.*--prefill.*serve --help'\n"),
        (["serve", "--port", "http"], r"headrace: Invalid value for '--port'.*valid int.*\n"),
        (["transfer"], r"headrace: Missing command; see 'headrace transfer --help'\n"),
        (["load"], r"headrace: Missing argument.*; see 'headrace load --help'\n"),
    ],
    ids=["command", "flag", "value", "subcommand", "argument"],
)
def test_a_mistyped_command_line_is_one_line_that_names_the_nearest(
    args: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    assert re.fullmatch(line, capsys.readouterr().err)


def test_the_entry_point_exits_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 2
