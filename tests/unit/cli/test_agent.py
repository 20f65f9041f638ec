"""``agent`` from its flags to the line that says where it listens, and to its end."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cluster.agent.agent import Agent
from headrace.cluster.agent.keys import read_key


def test_a_new_key_is_written_and_the_next_step_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--new-key", str(tmp_path / "k")]) == 0
    assert "copy it to every host" in capsys.readouterr().out
    assert len(read_key(tmp_path / "k")) == 32
    assert main(["agent", "--new-key", str(tmp_path / "k")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_it_says_where_it_listens_and_ends_with_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, closed = Agent.open, []

    async def open_and_interrupt(self: Agent, host: str, port: int) -> int:
        bound = await real(self, host, port)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return bound

    monkeypatch.setattr(Agent, "open", open_and_interrupt)
    monkeypatch.setattr(
        Agent, "close", lambda self, real=Agent.close: closed.append(self) or real(self)
    )
    main(["agent", "--new-key", str(tmp_path / "k")])
    capsys.readouterr()
    flags = ["--listen", "127.0.0.2:0", "--key-file", str(tmp_path / "k")]
    assert main(["agent", *flags]) == 128 + signal.SIGINT
    assert re.fullmatch(r"agent listening on 127\.0\.0\.2:[1-9]\d*\n", capsys.readouterr().out)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --listen ADDRESS:PORT and --key-file FILE, or --new-key FILE"),
        (["--listen", "127.0.0.2:0"], "give --listen ADDRESS:PORT and --key-file FILE"),
        (["--listen", "127.0.0.2", "--key-file", "k"], "--listen '127.0.0.2': expected HOST:PORT"),
        (["--listen", "127.0.0.2:0", "--key-file", "none"], "key file none: No such file"),
        (["--new-key", "k", "--listen", "127.0.0.2:0"], "--new-key makes a file and leaves"),
    ],
)
def test_what_a_person_must_mend_is_one_line(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["agent", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"headrace: {message}")
