"""Loads are made up from a seed, or take arrivals, lengths and shared beginnings of a trace."""

import gzip
import json

import pytest

from headrace.bench.workload import TOKEN_IDS, TraceOptions, made_up, read_trace, total_tokens
from headrace.core.errors import ConfigError

CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
"""


def test_made_up_requests_are_the_same_for_a_seed_and_share_nothing():
    first, again = (made_up(20, prompt_tokens=50, output_tokens=7, rate=4.0) for _ in "ab")
    assert first == again
    assert len({tuple(each.prompt_ids[:16]) for each in first}) == 20
    assert {len(each.prompt_ids) for each in first} == {50}
    assert total_tokens(first) == 140
    times = [each.at_s for each in first]
    assert times == sorted(times)
    assert 1.0 < times[-1] < 20.0
    assert {each.at_s for each in made_up(3, prompt_tokens=1, output_tokens=1)} == {0.0}


@pytest.mark.parametrize("is_zipped", [False, True])
def test_a_trace_of_comma_separated_values(tmp_path, is_zipped):
    path = tmp_path / ("t.csv.gz" if is_zipped else "t.csv")
    path.write_bytes(gzip.compress(CSV.encode()) if is_zipped else CSV.encode())
    options = TraceOptions(speed=2.0, scale=0.5, max_output_tokens=30)
    first, second = read_trace(path, options)
    assert (first.at_s, second.at_s) == (0.0, pytest.approx(2.0))
    assert (len(first.prompt_ids), len(second.prompt_ids)) == (187, 198)
    assert (first.max_tokens, second.max_tokens) == (22, 30)
    assert len(read_trace(path, TraceOptions(max_requests=1))) == 1


def test_equal_hash_ids_of_a_trace_are_equal_tokens(tmp_path):
    lines = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 4000, "input_length": 1500, "output_length": 6, "hash_ids": [0, 1, 9]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_trace(path, TraceOptions())
    assert second.at_s == 3.0
    assert (len(first.prompt_ids), len(second.prompt_ids)) == (1100, 1500)
    assert first.prompt_ids[:1024] == second.prompt_ids[:1024]
    assert first.prompt_ids[1024:] != second.prompt_ids[1024:1100]
    assert set(first.prompt_ids) <= set(TOKEN_IDS)
    (small, _) = read_trace(path, TraceOptions(scale=0.1, max_prompt_tokens=60))
    assert len(small.prompt_ids) == 60


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.csv", None, "cannot be read"),
        ("t.csv", "a,b\n1,2\n", "expected CSV with TIMESTAMP"),
        ("t.jsonl", "{}\n", "expected CSV with TIMESTAMP"),
        ("t.jsonl", "nonsense\n", "or JSON lines with timestamp"),
        ("t.jsonl", "", "no request in it"),
        ("t.csv.gz", "not zipped", "cannot be read"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_trace(tmp_path / name, TraceOptions())
    assert "\n" not in str(caught.value)
