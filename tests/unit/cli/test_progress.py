"""Ranks coming up: plain lines for files, bars for terminals, tracebacks for the log."""

import io
import logging

import pytest
from rich.console import Console

from headrace.cli.progress import StartReport
from headrace.cluster.events import RankExited
from headrace.core.messages import LoadProgress, RankInfo, Ready


def ready(rank: int) -> Ready:
    info = RankInfo(rank=rank, generation=1, address="ipc://x")
    return Ready(replica="decode0", info=info, num_blocks=4, block_size=16, max_tokens=64)


def loading(done_bytes: int) -> LoadProgress:
    return LoadProgress(replica="decode0", rank=0, done_bytes=done_bytes, total_bytes=100)


def shown(*, is_terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=100, highlight=False)
    with StartReport(console, num_ranks=2) as report:
        for event in (loading(10), loading(100), ready(0), ready(1)):
            report.on_event(event)
    return file.getvalue()


def test_a_file_gets_one_line_a_rank() -> None:
    assert shown(is_terminal=False) == "decode0.0 ready (1 of 2)\ndecode0.1 ready (2 of 2)\n"


def test_a_terminal_gets_bars_that_are_taken_away() -> None:
    text = shown(is_terminal=True)
    assert "decode0.1" in text
    assert "ready (" not in text


def test_the_last_words_of_a_rank_with_a_fault_go_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = StartReport(Console(file=io.StringIO()), num_ranks=1)
    for exit_code in (0, 1, 2, -9):
        lines = ("Traceback", f"code {exit_code}")
        with caplog.at_level(logging.ERROR):
            report.on_event(RankExited(name="mono0.0", exit_code=exit_code, last_lines=lines))
    assert [record.getMessage() for record in caplog.records] == [
        "mono0.0 wrote last:\nTraceback\ncode 1"
    ]
