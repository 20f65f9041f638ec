"""The command as a process with real ranks: it answers, and whatever ends it leaves nothing."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.cli_process import (
    Serving,
    children,
    headrace,
    private_temporary_folder,
    traces,
    wait_gone,
)

SPLIT = ("--prefill", "tp=2,ep=2", "--decode", "dp=2,ep=2", "--port", "0")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint") / "random"
    write_checkpoint(folder, TinyModel(), tokenizer=True)
    return str(folder)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with private_temporary_folder(monkeypatch) as folder:
        yield folder


def test_a_split_deployment_answers_and_ctrl_c_leaves_nothing(
    checkpoint: str, temporary: Path
) -> None:
    with Serving(checkpoint, *SPLIT) as serving:
        url = serving.url()
        ranks = children(serving.process.pid)
        assert len(ranks) == 4
        assert len(traces(temporary)) > 1
        flags = ("--url", url, "--max-tokens", "5", "--seed", "1")
        first, second = (headrace("chat", *flags, given="hello\n") for _ in range(2))
        assert (first.returncode, first.stderr) == (0, "")
        assert first.stdout == second.stdout
        serving.process.send_signal(signal.SIGINT)
        assert serving.end() == (130, "")
    wait_gone(ranks)
    assert traces(temporary) == []
    refused = headrace("chat", "--url", url)
    assert refused.returncode == 2
    assert "nobody answers" in refused.stderr


@pytest.mark.parametrize("victim", [0, 1], ids=["a-prefill-rank", "a-decode-rank"])
def test_a_killed_rank_is_replaced_and_the_server_goes_on(
    checkpoint: str, temporary: Path, victim: int
) -> None:
    with Serving(checkpoint, "--prefill", "tp=1", "--decode", "dp=1", "--port", "0") as serving:
        flags = ("--url", serving.url(), "--max-tokens", "5", "--seed", "1")
        before = headrace("chat", *flags, given="hello\n")
        ranks = children(serving.process.pid)
        os.kill(ranks[victim], signal.SIGKILL)
        name = ("prefill0", "decode0")[victim]
        assert serving.line(f"{name}.0 was ended by SIGKILL")
        assert serving.line(f"{name} is back after")
        after = headrace("chat", *flags, given="hello\n")
        ranks += children(serving.process.pid)
        serving.process.send_signal(signal.SIGINT)
        code, _ = serving.end()
    assert (after.returncode, after.stdout) == (0, before.stdout)
    assert code == 130
    wait_gone(ranks)
    assert traces(temporary) == []


def test_a_signal_while_ranks_come_up_leaves_nothing(checkpoint: str, temporary: Path) -> None:
    with Serving(checkpoint, *SPLIT) as serving:
        while len(ranks := children(serving.process.pid)) < 4:
            assert serving.process.poll() is None
        serving.process.send_signal(signal.SIGTERM)
        assert serving.end() == (143, "")
    wait_gone(ranks)
    assert traces(temporary) == []


def test_a_killed_command_takes_its_ranks_with_it_and_the_next_one_sweeps(
    checkpoint: str, temporary: Path
) -> None:
    with Serving(checkpoint, "--port", "0") as serving:
        serving.url()
        ranks = children(serving.process.pid)
        serving.process.kill()
        serving.end()
    wait_gone(ranks)
    assert traces(temporary) != []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = headrace("serve", checkpoint, "--port", str(taken.getsockname()[1]))
    assert "sweeping what the dead deployment" in ended.stderr
    assert traces(temporary) == []
