"""Stop strings: found over any split of the text, and never shown in part.

Text that may yet turn out to begin a stop string is held back, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Checked(NamedTuple):
    """Text that is safe to show, and the stop string that ended the sequence, if one did."""

    text: str
    stop: str | None = None


class StopChecker:
    """Watches one sequence's text for stop strings.

    The stop string that is complete first wins; of those complete at the same character, the
    longest. So the answer does not depend on how the text was split into pushes.

    Args:
        stops: Stop strings, none of them empty; possibly none at all.
        include_stop: Show the stop string too.

    Guarantees:
        * Joined over any split, the shown text is the text before the winning stop (with it, if
          ``include_stop``), or the whole text when there is none.
        * Held back is the longest end of the text that begins a stop string, no more.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stops:
            raise ValueError("an empty stop string would stop everything")
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._longest = max(map(len, stops), default=0)
        self._is_stopped = False

    def push(self, text: str) -> Checked:
        """Take more text; after a stop nothing is shown any more."""
        if self._is_stopped or not self._stops:
            return Checked("" if self._is_stopped else text)
        text = self._held + text
        stop = self._find(text)
        if stop is not None:
            self._is_stopped = True
            self._held = ""
            end = text.index(stop)
            return Checked(text[: end + len(stop) * self._include_stop], stop)
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return Checked(text[: len(text) - num_held])

    def finish(self) -> str:
        """Return the text held back: the sequence ended otherwise, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> str | None:
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops]
        return min((each for each in found if each[0] + each[1] >= 0), default=(0, 0, None))[2]

    def _num_held(self, text: str) -> int:
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
