"""What a rank is doing, noted as it goes, so that a wait that ends in vain can be explained.

A rank keeps one ``Flight``: where it stands (step, layer) and its last events. When a deadline
passes, the **flight record** says who waited, in which collective or session, of which step and
layer, and for whom. Nothing here writes anything; the engine does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import CollectiveError, HeadraceError

# A power of two. Long enough for several steps and their sessions, short enough for one log line.
MAX_EVENTS = 64

_NOTHING = (0.0, "", 0)
_CLOCK = SystemClock()


class SessionWait(Struct, frozen=True, kw_only=True):
    """A transfer session that is not complete.

    Attributes:
        session_id: Which session.
        replica: Prefill replica that it waits for.
        waited_s: Time since it was opened [s].
        missing_bytes: What each of the replica's ranks still owes, by rank.
    """

    session_id: str
    replica: str
    waited_s: float
    missing_bytes: dict[int, int]


class FlightRecord(Struct, frozen=True, kw_only=True):
    """One rank at the moment that a wait ended in vain.

    Attributes:
        rank: The rank's name.
        generation: Its generation.
        error: The essence in one line.
        step: Step that it was in, or had last been in.
        layer: Layer of the model that it had last reached in that step; -1 before the first.
        collective: Collective that it waited in; empty when it was in none.
        exchange: Running number of the collective's exchange.
        missing: Ranks that it waited for there.
        sessions: Sessions that had not all their KV.
        events: The last events, oldest first: seconds before the record, name, number.
    """

    rank: str
    generation: int
    error: str
    step: int
    layer: int
    collective: str
    exchange: int
    missing: tuple[int, ...]
    sessions: list[SessionWait]
    events: list[tuple[float, str, int]]

    def to_json(self) -> bytes:
        """Return the record as one line of JSON."""
        return msgspec.json.encode(self)


class Flight:
    """Where one rank stands, and its last ``MAX_EVENTS`` events.

    Args:
        rank: The rank's name.
        generation: Its generation.
        clock: Time of events.

    Attributes:
        step: Step that the rank is in, or was in last.
        layer: Layer that it last reached in that step; -1 before the first.

    Guarantees:
        One thread notes; any thread may read ``step`` and ``layer``, each a single store.

    Cost:
        Under a microsecond a note, nothing grows.
    """

    __slots__ = ("_clock", "_events", "_generation", "_next", "_rank", "layer", "step")

    def __init__(self, rank: str = "a rank", *, generation: int = 0, clock: Clock = _CLOCK) -> None:
        self.step = 0
        self.layer = -1
        self._rank = rank
        self._generation = generation
        self._clock = clock
        self._events: list[tuple[float, str, int]] = [_NOTHING] * MAX_EVENTS
        self._next = 0

    def note(self, event: str, number: int = 0) -> None:
        """Remember an event under a short constant name, such as ``open_session``."""
        self._events[self._next & (MAX_EVENTS - 1)] = (self._clock.now_s(), event, number)
        self._next += 1

    def enter_step(self, step: int) -> None:
        """The rank begins a step."""
        self.step = step
        self.layer = -1
        self.note("step", step)

    def enter_layer(self, layer: int) -> None:
        """The step has written the KV of ``layer`` and goes on with its attention."""
        self.layer = layer

    def where(self) -> str:
        """Return the position in words.

        Example:
            >>> flight = Flight("prefill0.1")
            >>> flight.enter_step(12)
            >>> flight.enter_layer(3)
            >>> flight.where()
            'step 12, layer 3'
        """
        return position(self.step, self.layer)

    def explain(self, error: HeadraceError) -> str:
        """Return in one line what the rank was waiting for, and where, when ``error`` came."""
        if not isinstance(error, CollectiveError) or not error.missing:
            return f"{self._rank} in {self.where()}: {error}"
        ranks = "rank" if len(error.missing) == 1 else "ranks"
        missing = f"{ranks} {', '.join(map(str, error.missing))}"
        return (
            f"{self._rank} waited {error.waited_s:.1f} s in {error.collective} "
            f"#{error.exchange} of {self.where()} for {missing}{error.because}"
        )

    def record(
        self, error: str, *, cause: HeadraceError | None = None, sessions: Sequence[SessionWait]
    ) -> FlightRecord:
        """Return all that is known now; called by the thread that notes.

        Args:
            error: The essence in one line.
            cause: The error behind it, where there is one.
            sessions: Sessions that wait for KV.
        """
        collective = cause if isinstance(cause, CollectiveError) else None
        return FlightRecord(
            rank=self._rank,
            generation=self._generation,
            error=error,
            step=self.step,
            layer=self.layer,
            collective=collective.collective if collective else "",
            exchange=collective.exchange if collective else 0,
            missing=collective.missing if collective else (),
            sessions=list(sessions),
            events=self._last_events(),
        )

    def _last_events(self) -> list[tuple[float, str, int]]:
        now_s, first = self._clock.now_s(), max(0, self._next - MAX_EVENTS)
        kept = [self._events[i & (MAX_EVENTS - 1)] for i in range(first, self._next)]
        return [(round(now_s - at_s, 6), event, number) for at_s, event, number in kept]


def position(step: int, layer: int) -> str:
    """Return a position in words; a layer of -1 is none."""
    return f"step {step}" + (f", layer {layer}" if layer >= 0 else "")


def told_position(counters: Mapping[str, float]) -> str:
    """Return the position that a rank's heartbeat tells, in words; empty if it tells none.

    Example:
        >>> told_position({"headrace_step": 12, "headrace_layer": 3})
        'step 12, layer 3'
    """
    step, layer = counters.get("headrace_step", math.nan), counters.get("headrace_layer", -1.0)
    if not (math.isfinite(step) and math.isfinite(layer)):
        return ""
    return position(int(step), int(layer))
