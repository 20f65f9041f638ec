"""The demo shows an answer as it streams, then where it came from."""

from pathlib import Path

import pytest

from headrace.cli.demo import demo_deployment
from headrace.cli.main import main
from headrace.core.sharding import Role, Sharding
from tests.support.cli_model import answer_without_engine


def test_it_runs_prefill_and_decode_apart_on_a_free_port() -> None:
    config = demo_deployment()
    shardings = {role: replica.sharding(is_moe=True) for role, replica in config.roles}
    assert shardings == {
        Role.PREFILL: Sharding(tp=2, ep=2),
        Role.DECODE: Sharding(dp=2, ep=2),
    }
    assert config.serving.port == 0


def test_it_prints_question_answer_ledger_and_memory_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_without_engine(monkeypatch, tmp_path)
    assert main(["demo", "Hello there"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    out = captured.out
    assert out.startswith("starting prefill tp=2,dp=1,ep=2 + decode tp=1,dp=2,ep=2\n")
    assert "\nyou: Hello there\ntiny: Hello there\n" in out
    assert "prompt computed by prefill0" in out
    assert "10 transferred, 0 cached, 1 by the decode rank" in out
    assert out.endswith("GiB together (PSS)\n")
    assert "5 processes took" in out


def test_a_rank_that_dies_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_without_engine(monkeypatch, tmp_path)
    assert main(["demo", "die! now"]) == 1
    assert capsys.readouterr().err == "headrace: decode0.0 was ended by SIGKILL\n"
