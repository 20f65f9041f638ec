"""A rank that hangs is named by those that wait for it: in which collective, of which step."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path

import httpx
import msgspec

from headrace.core.flight import FlightRecord
from tests.support.server_process import ServerProcess, running_server

DEADLINE_S = 60.0
LINE = re.compile(r"mono0\.0: WARNING headrace\.engine\.flight_log: flight record: (\{.*\})$")


def stream(server: ServerProcess, first: threading.Event) -> None:
    """Ask for a long answer; sets ``first`` at its first event, and ends however it ends."""
    body = {
        "model": server.model,
        "prompt": [300] * 20,
        "max_tokens": 2000,
        "stream": True,
        "ignore_eos": True,
    }
    try:
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=body, timeout=DEADLINE_S
        ) as answer:
            for _ in answer.iter_lines():
                first.set()
    except httpx.HTTPError:
        # The server may end with its rank.
        first.set()


def first_record(server: ServerProcess) -> FlightRecord:
    """Return the first flight record of rank mono0.0 in the server's log."""
    found = threading.Event()
    for _ in range(int(DEADLINE_S / 0.1)):
        for line in list(server.lines):
            if match := LINE.search(line):
                return msgspec.json.decode(match[1].encode(), type=FlightRecord)
        found.wait(0.1)
    raise AssertionError(f"no flight record in {server.lines}")


def test_the_rank_that_waits_says_for_whom_in_what_and_where(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"tokens": [300] * 2000}))
    settings = ("engine.kv_cache_mib=64", "engine.collective_timeout_s=2.0")
    arguments = [word for setting in settings for word in ("--set", setting)]
    first = threading.Event()
    with running_server(f"replay:{script}", "--mono", "dp=2", *arguments) as server:
        hung = server.ranks()[1]
        client = threading.Thread(target=stream, args=(server, first))
        client.start()
        assert first.wait(DEADLINE_S)
        hung.send_signal(signal.SIGSTOP)
        try:
            record = first_record(server)
        finally:
            hung.send_signal(signal.SIGKILL)
        client.join(DEADLINE_S)
    assert (record.rank, record.collective, record.missing) == ("mono0.0", "agree", (1,))
    assert record.exchange > 0
    assert record.step > 0
    assert [event for _, event, _ in record.events][-1] == "step"
    place = rf"agree #{record.exchange} of step {record.step} for rank 1"
    assert re.fullmatch(rf"mono0\.0 waited \d+\.\d s in {place}", record.error)
