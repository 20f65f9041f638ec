import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.chaos import Blow, ChaosPlan, WriteFaults, parse_chaos
from headrace.core.errors import ConfigError


def test_everything_that_can_be_asked_for_is_read() -> None:
    text = "lose=0.03, delay=50ms,duplicate=1,reorder=0.2,hold=0.01@3s,seed=7,kill=prefill@12s"
    assert parse_chaos(text) == ChaosPlan(
        writes=WriteFaults(
            seed=7, lose=0.03, delay_s=0.05, duplicate=1.0, reorder=0.2, hold=0.01, hold_s=3.0
        ),
        blows=(Blow(kind="kill", target="prefill", at_s=12.0),),
    )


def test_blows_come_in_order_of_time_and_as_many_as_there_are() -> None:
    plan = parse_chaos("kill=decode0.1@3s,stop=prefill@500ms,kill=prefill1@2.5s")
    assert [(blow.kind, blow.target, blow.at_s) for blow in plan.blows] == [
        ("stop", "prefill", 0.5),
        ("kill", "prefill1", 2.5),
        ("kill", "decode0.1", 3.0),
    ]


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_text_asks_for_nothing(text: str) -> None:
    assert parse_chaos(text) == ChaosPlan()
    assert parse_chaos(text).writes.is_calm


@pytest.mark.parametrize("text", ["lose=0.1", "delay=1ms", "duplicate=1", "reorder=1", "hold=1@1s"])
def test_any_fault_of_writes_is_no_calm(text: str) -> None:
    assert not parse_chaos(text).writes.is_calm
    assert parse_chaos("seed=3,kill=decode@1s").writes.is_calm


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("los=0.1", "chaos 'los=0.1': unknown key 'los'; did you mean 'lose'?"),
        ("explode", "unknown key 'explode'; known keys: delay, duplicate, hold, kill"),
        ("delay", "chaos 'delay': expected a value, such as delay=50ms"),
        ("lose=", "chaos 'lose=': expected a value, such as lose=0.03"),
        ("lose=3%", "chaos 'lose=3%': expected a share from 0 to 1, such as lose=0.03, got '3%'"),
        ("lose=1.5", "a share from 0 to 1"),
        ("lose=nan", "a share from 0 to 1"),
        ("delay=50", "expected a time in s or ms, such as delay=50ms, got '50'"),
        ("delay=-1s", "a time in s or ms"),
        ("delay=9999s", "at most 3600s"),
        ("hold=0.1", "expected a share and how long, such as hold=0.01@3s"),
        ("hold=2@1s", "a share from 0 to 1"),
        ("kill=prefill", "expected whom and when, such as kill=prefill@12s, got 'prefill'"),
        ("kill=edge@1s", "expected a role, replica or rank, such as prefill, prefill0"),
        ("stop=decode.1@1s", "expected a role, replica or rank"),
        ("kill=prefill@soon", "a time in s or ms"),
        ("seed=x", "a whole number"),
        ("lose=0.1,lose=0.2", "lose is given twice"),
    ],
)
def test_what_is_wrong_is_one_line_that_says_what_was_expected(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_chaos(text)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40) | st.from_regex(r"(lose|delay|kill|hold|seed)=[\w.@%-]{0,9}"))
def test_any_other_text_is_refused_and_never_crashes(text: str) -> None:
    try:
        plan = parse_chaos(text)
    except ConfigError:
        return
    assert 0.0 <= plan.writes.lose <= 1.0
    assert 0.0 <= plan.writes.delay_s <= 3600.0


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        ("prefill", {"prefill0.0", "prefill0.1", "prefill10.0"}),
        ("prefill0", {"prefill0.0", "prefill0.1"}),
        ("prefill0.1", {"prefill0.1"}),
        ("prefill1", set()),
        ("decode", {"decode0.0"}),
    ],
)
def test_a_blow_hits_the_ranks_of_its_role_its_replica_or_its_name(
    target: str, hit: set[str]
) -> None:
    ranks = ["prefill0.0", "prefill0.1", "prefill10.0", "decode0.0"]
    blow = Blow(kind="kill", target=target, at_s=1.0)
    assert {rank for rank in ranks if blow.hits(rank)} == hit


def test_a_blow_that_no_rank_can_take_is_refused_with_the_ranks_there_are() -> None:
    plan = parse_chaos("kill=decode0.1@1s,stop=prefill@2s")
    plan.check_targets(["prefill0.0", "decode0.0", "decode0.1"])
    with pytest.raises(ConfigError, match=r"kill=decode0.1: no such rank.*prefill0.0, decode0.0"):
        plan.check_targets(["prefill0.0", "decode0.0"])
