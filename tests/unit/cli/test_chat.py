"""``chat`` from flags to turns, with a server of its own or another's."""

import io
from pathlib import Path

import pytest

from headrace.cli import chat as chat_room
from headrace.cli.chat import Place
from headrace.cli.main import main
from tests.support.cli_model import answer_without_engine, write_model
from tests.support.cli_process import private_temporary_folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the command asked for, instead of a conversation."""
    calls: list[tuple[object, ...]] = []

    def note(place: Place, name: str, *, fields: dict, system: str) -> None:
        calls.append((place, name, fields, system))

    monkeypatch.setattr(chat_room, "_talk", note)
    return calls


def test_without_a_model_it_talks_to_the_usual_address(opened: list) -> None:
    assert main(["chat"]) == 0
    assert opened == [(Place(url="http://127.0.0.1:8000"), "", {}, "")]


def test_every_flag_is_sent_along(opened: list) -> None:
    flags = ["--url", "http://h:1", "--api-key", "k", "--name", "m", "--system", "s"]
    sampling = ["--max-tokens", "5", "--temperature", "0", "--seed", "3", "--no-think"]
    assert main(["chat", *flags, *sampling]) == 0
    thinking = {"enable_thinking": False}
    fields = {"max_tokens": 5, "temperature": 0.0, "seed": 3, "chat_template_kwargs": thinking}
    assert opened == [(Place(url="http://h:1", api_key="k"), "m", fields, "s")]


def test_a_model_or_a_deployment_flag_starts_a_server(opened: list) -> None:
    for flags in (["tiny"], ["--mono", "dp=2"], ["--prefill", "tp=1", "--decode", "dp=1"]):
        assert main(["chat", *flags]) == 0
        assert opened.pop()[0].deployment.model == "tiny"


def test_an_address_beside_a_model_is_refused(
    opened: list, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "tiny", "--url", "http://h:1"]) == 2
    assert "--url beside a model" in capsys.readouterr().err
    assert opened == []


def test_lines_of_a_pipe_are_turns_and_only_answers_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_without_engine(monkeypatch, tmp_path / "tiny")
    monkeypatch.setattr("sys.stdin", io.StringIO("good morning\n\nhow are you\n/quit\nunheard\n"))
    # A folder of its own: what a dead deployment left elsewhere would be swept with a warning.
    with private_temporary_folder(monkeypatch):
        assert main(["chat", str(write_model(tmp_path / "model"))]) == 0
    assert capsys.readouterr() == ("good morning\nhow are you\n", "")


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("headrace: nobody answers at http://127.0.0.1:9")
    assert captured.err.count("\n") == 1
