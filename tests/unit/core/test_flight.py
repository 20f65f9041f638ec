"""A flight says where its rank was when a wait ended, and forgets all but the last events."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import CollectiveError, HeadraceError, ReplicaError
from headrace.core.flight import MAX_EVENTS, Flight, FlightRecord, SessionWait


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time_s = 50.0

    def now_s(self) -> float:
        return self.time_s


def flight_at(step: int, layer: int | None = None) -> Flight:
    flight = Flight("prefill0.1", generation=4, clock=ManualClock())
    flight.enter_step(step)
    if layer is not None:
        flight.enter_layer(layer)
    return flight


def missing(*ranks: int, because: str = "") -> CollectiveError:
    return CollectiveError(
        "short",
        collective="all_gather",
        exchange=341,
        missing=ranks,
        waited_s=20.0,
        because=because,
    )


@pytest.mark.parametrize(
    ("flight", "error", "essence"),
    [
        (
            flight_at(12, 3),
            missing(0),
            "prefill0.1 waited 20.0 s in all_gather #341 of step 12, layer 3 for rank 0",
        ),
        (
            flight_at(12),
            missing(0, 2, because=": rank 2 left the group"),
            "prefill0.1 waited 20.0 s in all_gather #341 of step 12 for ranks 0, 2: "
            "rank 2 left the group",
        ),
        (flight_at(7, 0), missing(), "prefill0.1 in step 7, layer 0: short"),
        (flight_at(7), ReplicaError("the group is closed"), "prefill0.1 in step 7: the group is "),
    ],
    ids=["one", "several", "disagreement", "other"],
)
def test_the_essence_names_rank_collective_step_layer_and_the_missing(
    flight: Flight, error: HeadraceError, essence: str
) -> None:
    assert flight.explain(error).startswith(essence)


def test_a_new_step_is_in_no_layer_yet() -> None:
    flight = flight_at(3, 9)
    flight.enter_step(4)
    assert flight.where() == "step 4"


@pytest.mark.parametrize("count", [0, 1, MAX_EVENTS - 1, MAX_EVENTS, MAX_EVENTS + 1, 1000])
def test_the_last_events_are_kept_in_order(count: int) -> None:
    clock = ManualClock()
    flight = Flight("decode0.0", generation=1, clock=clock)
    for number in range(count):
        flight.note("open_session", number)
        clock.time_s += 0.5
    events = flight.record("why", sessions=[]).events
    assert [number for _, _, number in events] == list(range(count))[-MAX_EVENTS:]
    assert [age_s for age_s, _, _ in events][-1:] == [0.5][:count]


def test_a_record_is_one_line_that_says_everything() -> None:
    wait = SessionWait(
        session_id="decode0.0.1-7", replica="prefill0", waited_s=30.0, missing_bytes={0: 0, 1: 640}
    )
    line = flight_at(12, 3).record("why", cause=missing(0), sessions=[wait]).to_json()
    assert b"\n" not in line
    record = msgspec.json.decode(line, type=FlightRecord)
    assert (record.rank, record.generation, record.error) == ("prefill0.1", 4, "why")
    assert (record.step, record.layer) == (12, 3)
    assert (record.collective, record.exchange, record.missing) == ("all_gather", 341, (0,))
    assert record.sessions == [wait]
    assert record.events == [(0.0, "step", 12)]


def test_a_record_without_a_collective_names_none() -> None:
    record = flight_at(1).record("late", sessions=[])
    assert (record.collective, record.exchange, record.missing) == ("", 0, ())
