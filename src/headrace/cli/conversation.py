"""A conversation with a model over lines of text, whoever types them and whoever answers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import typer

from headrace.core.errors import RequestError

Turns = list[dict[str, str]]
OnText = Callable[[str], None]


class Answer(Protocol):
    """What a conversation needs of an answer."""

    text: str


Asker = Callable[[Turns, OnText], Answer]

QUIT = ("/quit", "/exit")
RESET = "/reset"


class Conversation:
    """The turns so far.

    Args:
        ask: Answers the turns it is given, handing on text as it comes.
        system: Instructions before the first turn.
        is_patient: Show a refusal or an interruption and go on, as a person at a terminal wants;
            otherwise raise it.
    """

    def __init__(self, ask: Asker, *, system: str = "", is_patient: bool = False) -> None:
        self.turns: Turns = [{"role": "system", "content": system}] if system else []
        self._ask = ask
        self._is_patient = is_patient
        self._num_fixed = len(self.turns)

    def run(self, lines: Iterable[str]) -> None:
        """Answer line after line until ``/quit`` or the end; empty lines are skipped."""
        for line in lines:
            text = line.strip()
            if text in QUIT:
                return
            if text == RESET:
                del self.turns[self._num_fixed :]
            elif text:
                self.say(text)

    def say(self, text: str) -> None:
        """Take one turn; a turn that fails leaves no trace in the conversation."""
        turns = [*self.turns, {"role": "user", "content": text}]
        try:
            answer = self._ask(turns, _show)
        except RequestError as error:
            if not self._is_patient:
                raise
            typer.echo(f"headrace: {error}\n", err=True)
            return
        except KeyboardInterrupt:
            if not self._is_patient:
                raise
            typer.echo(" (stopped)\n")
            return
        typer.echo("\n" if self._is_patient else "")
        self.turns = [*turns, {"role": "assistant", "content": answer.text}]


def typed_lines(is_terminal: bool) -> Iterator[str]:
    """Return the lines of standard input, with a prompt and line editing at a terminal."""
    if not is_terminal:
        return iter(sys.stdin)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (importing it is what gives ``input`` its line editing)
    return _prompted()


def _prompted() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except EOFError:
            typer.echo()
            return


def _show(text: str) -> None:
    typer.echo(text, nl=False)
