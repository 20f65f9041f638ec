"""``serve`` from flags to the line that says where, and to its end."""

import os
import re
import signal
from pathlib import Path

import pytest

from headrace.cli import serve as serve_room
from headrace.cli.main import main
from headrace.cli.server import RunningServer
from headrace.deployment import DeploymentConfig
from tests.support.cli_model import answer_without_engine, write_model


def stopped_when_ready(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Send a signal to this process as soon as ``serve`` waits for one."""
    real = RunningServer.serve

    async def serve(self: RunningServer) -> None:
        os.kill(os.getpid(), number)
        await real(self)

    monkeypatch.setattr(RunningServer, "serve", serve)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_serves_and_ends_with_the_signal(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer_without_engine(monkeypatch, tmp_path / "tiny")
    stopped_when_ready(monkeypatch, number)
    flags = ["--prefill", "tp=1", "--decode", "dp=2", "--port", "0", "--name", "parrot"]
    assert main(["serve", str(write_model(tmp_path / "model")), *flags]) == 128 + number
    captured = capsys.readouterr()
    *ranks, last = captured.out.splitlines()
    assert sorted(line.split()[0] for line in ranks) == ["decode0.0", "decode0.1", "prefill0.0"]
    assert re.fullmatch(
        r"serving parrot at http://127\.0\.0\.1:\d+/v1 "
        r"\(prefill tp=1,dp=1,ep=1 \+ decode tp=1,dp=2,ep=2\)",
        last,
    )
    assert captured.err == ""


def test_every_server_flag_reaches_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[DeploymentConfig] = []

    async def note(config: DeploymentConfig, _source: object) -> None:
        seen.append(config)

    answer_without_engine(monkeypatch, tmp_path / "tiny")
    monkeypatch.setattr(serve_room, "_serve", note)
    keys = ["--api-key", "a", "--api-key", "b"]
    address = ["--host", "0.0.0.0", "--port", "9", "--name", "n"]
    assert main(["serve", str(write_model(tmp_path)), *keys, *address]) == 0
    serving = seen[0].serving
    assert (serving.host, serving.port, serving.model_name) == ("0.0.0.0", 9, "n")
    assert serving.api_keys == ("a", "b")
    assert main(["serve", str(write_model(tmp_path)), "--chaos", "stop=mono@1s"]) == 0
    assert seen[1].chaos == "stop=mono@1s"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--log-level", "loud"], "--log-level 'loud'"),
        (["--mono", "dp=3"], "ep=3 does not divide"),
        (["--chaos", "kil=mono@1s"], "unknown key 'kil'; did you mean 'kill'?"),
        (["--chaos", "kill=mono@1s", "--host", "0.0.0.0"], "for loopback only"),
        (["--chaos", "kill=mono7@1s", "--port", "0"], "no such rank"),
        (["--host", "no such host", "--port", "0"], "cannot listen on no such host:0"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_started(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer_without_engine(monkeypatch, tmp_path / "tiny")
    assert main(["serve", str(write_model(tmp_path)), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
