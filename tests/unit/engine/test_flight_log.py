"""The flight record is a log line and a file; what cannot be written hides nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from headrace.core.errors import CollectiveError
from headrace.core.flight import Flight, FlightRecord, SessionWait
from headrace.engine.flight_log import FlightLog
from tests.support.engine_world import ManualClock

WAIT = SessionWait(session_id="s", replica="prefill0", waited_s=3.0, missing_bytes={0: 5})


def make_log(path: Path) -> tuple[FlightLog, ManualClock]:
    clock = ManualClock()
    flight = Flight("decode0.1", generation=2, clock=clock)
    flight.enter_step(9)
    log = FlightLog(flight, path=path, clock=clock, min_gap_s=1.0)
    log.sessions = lambda: [WAIT]
    return log, clock


def records(caplog: pytest.LogCaptureFixture) -> list[FlightRecord]:
    lines = [record.getMessage() for record in caplog.records]
    return [
        msgspec.json.decode(line.partition(": ")[2], type=FlightRecord)
        for line in lines
        if line.startswith("flight record: ")
    ]


def test_leaving_writes_the_essence_to_log_and_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = make_log(tmp_path / "flight.json")
    error = CollectiveError("no", collective="agree", exchange=5, missing=(0,), waited_s=2.0)
    essence = log.leave(error)
    assert essence == "decode0.1 waited 2.0 s in agree #5 of step 9 for rank 0"
    (record,) = records(caplog)
    assert (record.error, record.sessions, record.missing) == (essence, [WAIT], (0,))
    assert msgspec.json.decode((tmp_path / "flight.json").read_bytes(), type=FlightRecord) == record


def test_late_sessions_are_recorded_but_not_by_the_hundred(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, clock = make_log(tmp_path / "flight.json")
    for at_s in (0.0, 0.1, 0.9, 1.0, 1.5, 2.1):
        clock.time_s = at_s
        log.session_late(f"late at {at_s}")
    assert [one.error for one in records(caplog)] == ["late at 0.0", "late at 1.0", "late at 2.1"]


def test_a_file_that_cannot_be_written_is_said_and_hides_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, _ = make_log(tmp_path / "no" / "folder")
    log.session_late("late")
    assert [one.error for one in records(caplog)] == ["late"]
    assert any("not written" in one.getMessage() for one in caplog.records)
    assert all(one.levelno == logging.WARNING for one in caplog.records)
