"""A mark passes after its launch and its event; where there are no streams, roles take turns."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from headrace.engine.device.streams import Event, LaunchedMark, open_track
from headrace.engine.lane import UNLIMITED_TOKENS, InlineTrack


class _Switch:
    def __init__(self) -> None:
        self.is_on = False

    def query(self) -> bool:
        return self.is_on


def _ignore(event: Event) -> None:
    pass


def test_a_mark_has_passed_when_it_was_launched_and_the_device_is_past_it() -> None:
    launch: Future[Event] = Future()
    event, held = _Switch(), []
    mark = LaunchedMark(launch, held.append)
    assert not mark.has_passed()
    assert not mark.hold_back()
    launch.set_result(event)
    assert not mark.has_passed()
    assert mark.hold_back()
    assert held == [event]
    event.is_on = True
    assert mark.has_passed()


def test_a_launch_that_failed_is_an_error_of_the_rank() -> None:
    launch: Future[Event] = Future()
    launch.set_exception(RuntimeError("out of memory"))
    mark = LaunchedMark(launch, _ignore)
    with pytest.raises(RuntimeError, match="out of memory"):
        mark.has_passed()
    with pytest.raises(RuntimeError, match="out of memory"):
        mark.hold_back()


@pytest.mark.parametrize(("device", "overlaps"), [("cpu", True), ("cpu", False), ("cuda", False)])
def test_a_device_without_a_second_stream_runs_both_in_line(device: str, overlaps: bool) -> None:
    track, lane = open_track(torch.device(device), overlaps=overlaps, max_step_tokens=8)
    assert isinstance(track, InlineTrack)
    assert lane.room == UNLIMITED_TOKENS
    track.close()
