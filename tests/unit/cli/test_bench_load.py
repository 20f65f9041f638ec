"""Flags become one load; those that contradict each other are refused."""

import pytest

from headrace.cli.bench_load import lengths, make_load
from headrace.core.errors import ConfigError

LENGTHS = lengths(0, 10, 3, 1.0, 1.0, 7)


def test_a_closed_loop_is_the_default():
    case, load = make_load(None, LENGTHS, concurrency=0, rate=0.0)
    assert (case, load.concurrency, len(load.requests)) == ("64", 64, 256)
    assert {(len(r.prompt_ids), r.max_tokens) for r in load.requests} == {(10, 3)}
    assert make_load(None, LENGTHS, concurrency=5, rate=0.0)[0] == "5"


def test_a_rate_or_a_trace_makes_an_open_loop(tmp_path):
    case, load = make_load(None, LENGTHS, concurrency=0, rate=2.5)
    assert (case, load.concurrency) == ("rate/2.5", 0)
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 50, "output_length": 2}\n')
    case, load = make_load(trace, LENGTHS, concurrency=0, rate=0.0)
    assert (case, load.concurrency) == ("trace/t.jsonl", 0)
    assert [(len(r.prompt_ids), r.max_tokens) for r in load.requests] == [(10, 2)]
    assert make_load(trace, LENGTHS, concurrency=4, rate=0.0)[1].concurrency == 4


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="closed or open"):
        make_load(None, LENGTHS, concurrency=1, rate=1.0)
    with pytest.raises(ConfigError, match="scale them by --speed"):
        make_load(tmp_path / "t.csv", LENGTHS, concurrency=0, rate=1.0)
