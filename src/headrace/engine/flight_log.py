"""Writes a rank's flight record where a person finds it: one log line and one file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.core.flight import Flight, SessionWait

log = logging.getLogger(__name__)

# A network that loses every session must not fill the disk with accounts of it.
MIN_GAP_S = 1.0


class FlightLog:
    """Writes the flight record when a wait ended in vain.

    Args:
        flight: The rank's flight.
        path: File to write, replaced by each record: the last one is the one that matters.
        clock: Time.
        min_gap_s: Records of late sessions come no closer than this [s].

    Attributes:
        sessions: Returns the sessions that wait for KV; set by whoever has some.
    """

    def __init__(
        self,
        flight: Flight,
        *,
        path: Path,
        clock: Clock,
        min_gap_s: float = MIN_GAP_S,
    ) -> None:
        self.sessions: Callable[[], list[SessionWait]] = list
        self._flight = flight
        self._path = path
        self._clock = clock
        self._min_gap_s = min_gap_s
        self._last_s: float | None = None

    def leave(self, error: HeadraceError) -> str:
        """Write why the rank leaves its group; return the essence in one line."""
        essence = self._flight.explain(error)
        self._write(essence, error)
        return essence

    def session_late(self, reason: str) -> None:
        """Write that a session's deadline passed, unless a record was written just now."""
        now_s = self._clock.now_s()
        if self._last_s is None or now_s - self._last_s >= self._min_gap_s:
            self._last_s = now_s
            self._write(reason, None)

    def _write(self, essence: str, cause: HeadraceError | None) -> None:
        line = self._flight.record(essence, cause=cause, sessions=self.sessions()).to_json()
        log.warning("flight record: %s", line.decode())
        try:
            self._path.write_bytes(line + b"\n")
        except OSError as error:
            # The line above has it all; a full disk must not hide the cause of what went wrong.
            log.warning("flight record not written to %s: %s", self._path, error)
