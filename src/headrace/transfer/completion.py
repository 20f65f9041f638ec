"""The completion that every transport of ours hands out: an outcome, set once."""

from __future__ import annotations


class Outcome:
    """How a write or a fence ended. Set by one thread, read by another."""

    def __init__(self) -> None:
        self._error: str | None = None

    def finish(self, error: str = "") -> None:
        """Set the outcome, once."""
        self._error = error

    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None

    def error(self) -> str:
        """Empty on success or while under way."""
        return self._error or ""


def finished(error: str = "") -> Outcome:
    """Return what is over already."""
    outcome = Outcome()
    outcome.finish(error)
    return outcome
