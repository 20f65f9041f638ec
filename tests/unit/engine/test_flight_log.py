"""The flight record is a log line and a file; what cannot be written hides nothing."""

from __future__ import annotations

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from headrace.comm.group import Group
from headrace.core.errors import CollectiveError
from headrace.core.flight import Flight, FlightRecord, SessionWait
from headrace.core.messages import RunStep
from headrace.engine.backend import Row
from headrace.engine.flight_log import FlightLog
from headrace.engine.prefill import PrefillWorker
from tests.support.comm_ranks import run_ranks
from tests.support.engine_parts import ManualClock

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


class Layers:
    """A backend of some layers, each of which ends in an all-gather; rank 0 stops before one."""

    schemas = ()

    def __init__(self, group: Group, is_over: threading.Event, *, stop_at: int) -> None:
        self._group = group
        self._is_over = is_over
        self._stop_at = stop_at

    def run(self, rows: list[Row], *, on_layer: object) -> None:
        for layer in range(8):
            on_layer(layer)  # type: ignore[operator]
            if self._group.rank == 0 and layer == self._stop_at:
                assert self._is_over.wait(60.0)
                return
            self._group.all_gather(torch.ones(2))


def test_a_step_that_hangs_in_a_layer_is_explained_by_the_rank_that_waits() -> None:
    is_over = threading.Event()

    def step(group: Group) -> str:
        flight = Flight(f"prefill0.{group.rank}")
        worker = PrefillWorker(
            backend=Layers(group, is_over, stop_at=3),  # type: ignore[arg-type]
            senders=None,  # type: ignore[arg-type]
            send=lambda *_: None,
            flight=flight,
        )
        try:
            worker.run(RunStep(step=12, sequences=[]))
        except CollectiveError as error:
            return flight.explain(error)
        finally:
            is_over.set()
        return ""

    with ThreadPoolExecutor(2) as executor:
        essences = run_ranks(executor, 2, step, timeout_s=1.0, join_timeout_s=60.0)
    assert essences[0] == ""
    place = r"all_gather #4 of step 12, layer 3 for rank 0"
    assert re.fullmatch(rf"prefill0\.1 waited \d+\.\d s in {place}", essences[1])
