"""Calls rotate over enough inputs, variants take turns, percentiles are over replays."""

import itertools

import pytest

from headrace.bench.device import timing
from headrace.bench.device.timing import (
    MIN_REPLAYS,
    num_calls,
    num_sets,
    percentile,
    time_interleaved,
)
from tests.support.device_timer import FakeTimer


@pytest.mark.parametrize("set_bytes", [1.0, 1e6, 59e6, 60e6, 1e9])
def test_rotated_inputs_exceed_the_cache_unless_they_are_tiny(set_bytes):
    sets = num_sets(set_bytes, most=32)
    assert 2 <= sets <= 32
    assert sets == 32 or sets * set_bytes >= timing.ROTATED_BYTES


@pytest.mark.parametrize("sets", [1, 2, 5, 32])
@pytest.mark.parametrize("expected_us", [0.0, 0.5, 30.0, 1e5])
def test_a_graph_holds_whole_rotations(sets, expected_us):
    calls = num_calls(sets, expected_us)
    assert calls % sets == 0
    assert calls >= sets
    assert calls < timing.MAX_CALLS + sets
    assert calls * expected_us >= timing.GRAPH_US or calls >= timing.MAX_CALLS


def test_variants_take_turns_and_times_are_per_call():
    order = []
    recorded = {
        "a": (lambda: order.append("a"), 4),
        "b": (lambda: order.append("b"), 2),
    }

    class Timer(FakeTimer):
        def time_us(self, replays):
            for replay in replays:
                replay()
            return [100.0] * len(replays)

    timings = time_interleaved(recorded, Timer(), num_replays=6)
    assert order == list("aabb") + list("ab") * 6
    assert (timings["a"].p50_us, timings["b"].p50_us) == (25.0, 50.0)
    assert (timings["a"].num_calls, timings["a"].num_replays) == (4, 6)


def test_a_slow_variant_is_replayed_less_but_some_times():
    timer = FakeTimer(lambda: timing.BUDGET_US)
    recorded = {"slow": (timer.record([lambda: None], captures=False), 1)}
    assert time_interleaved(recorded, timer, num_replays=100)["slow"].num_replays == MIN_REPLAYS


def test_percentiles_are_of_the_replays():
    # The first two replays are for the budget.
    timer = FakeTimer(map(float, itertools.chain((1, 1), range(100, 0, -1))).__next__)
    recorded = {"one": (timer.record([lambda: None], captures=True), 1)}
    one = time_interleaved(recorded, timer, num_replays=100)["one"]
    assert (one.p50_us, one.p99_us) == (50.5, 99.0)


def test_a_percentile_is_one_of_the_values():
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([3.0, 1.0, 2.0], 0.0) == 1.0
    assert percentile([3.0, 1.0, 2.0], 1.0) == 3.0


def test_nothing_recorded_takes_no_time():
    assert time_interleaved({}, FakeTimer(), num_replays=3) == {}
