"""Turns: what is remembered, what ends the conversation, what a failure leaves."""

import io
from dataclasses import dataclass

import pytest

from headrace.cli.conversation import Conversation, typed_lines
from headrace.core.errors import ReplicaError, RequestError


@dataclass
class Said:
    text: str


class Echo:
    """Answers with the user's words in capitals; raises what it is given first."""

    def __init__(self, *errors: BaseException) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.errors = list(errors)

    def __call__(self, turns, on_text) -> Said:
        self.asked.append(turns)
        if self.errors:
            raise self.errors.pop(0)
        text = turns[-1]["content"].upper()
        for letter in text:
            on_text(letter)
        return Said(text)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_each_turn_is_asked_with_all_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    echo = Echo()
    Conversation(echo, system="be brief").run(["one\n", "\n", "  two "])
    history = [turn("system", "be brief"), turn("user", "one")]
    assert echo.asked == [
        history,
        [*history, turn("assistant", "ONE"), turn("user", "two")],
    ]
    assert capsys.readouterr().out == "ONE\nTWO\n"


@pytest.mark.parametrize("word", ["/quit", "/exit", " /quit\n"])
def test_the_conversation_ends_at_the_word(word: str) -> None:
    echo = Echo()
    Conversation(echo).run(["one", word, "two"])
    assert len(echo.asked) == 1


def test_starting_over_forgets_all_but_the_instructions() -> None:
    echo = Echo()
    Conversation(echo, system="be brief").run(["one", "/reset", "two"])
    assert echo.asked[-1] == [turn("system", "be brief"), turn("user", "two")]


@pytest.mark.parametrize("error", [RequestError("too long"), KeyboardInterrupt()])
def test_at_a_terminal_a_failed_turn_leaves_no_trace_and_the_talk_goes_on(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    echo = Echo(error)
    Conversation(echo, is_patient=True).run(["one", "two"])
    assert echo.asked[-1] == [turn("user", "two")]
    captured = capsys.readouterr()
    assert ("too long" in captured.err) or ("(stopped)" in captured.out)


@pytest.mark.parametrize("error", [RequestError("too long"), KeyboardInterrupt()])
def test_without_a_terminal_a_failed_turn_ends_it(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Conversation(Echo(error)).run(["one"])


def test_a_lost_deployment_ends_it_in_any_case() -> None:
    with pytest.raises(ReplicaError):
        Conversation(Echo(ReplicaError("gone")), is_patient=True).run(["one"])


def test_lines_are_read_from_a_pipe_without_prompts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo"))
    assert list(typed_lines(is_terminal=False)) == ["one\n", "two"]
    assert capsys.readouterr().out == ""


def test_the_end_of_a_terminals_input_is_the_end_of_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = iter(["one", "two"])

    def read(_prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert list(typed_lines(is_terminal=True)) == ["one", "two"]
