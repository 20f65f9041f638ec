"""The demo, as a newcomer runs it: real model, real ranks, prefill and decode apart."""

import re

from tests.support.cli_process import headrace


def test_the_demo_answers_from_kv_that_another_replica_computed() -> None:
    ended = headrace("demo", "Hello!", "--max-tokens", "12")
    assert (ended.returncode, ended.stderr) == (0, "")
    answer = re.search(r"^tiny: (.+)$", ended.stdout, re.MULTILINE)
    assert answer
    assert re.search(r"prefill .*prompt computed by prefill0", ended.stdout)
    tokens = re.search(
        r"prompt tokens +(\d+) +(\d+) transferred, 0 cached, 1 by the decode rank", ended.stdout
    )
    assert tokens
    assert int(tokens[1]) == int(tokens[2]) + 1
    received = re.search(r"KV received +([\d,]+) bytes +([\d,]+) expected, 1 session", ended.stdout)
    assert received
    assert received[1] == received[2] != "0"
    assert "5 processes took" in ended.stdout
