"""A rank's counters have all their names from the first beat on."""

from __future__ import annotations

from headrace.engine.decode import DecodeCounters
from headrace.engine.rank_counters import decode_counters
from tests.support.engine_world import World


def test_a_decode_rank_counts_its_sessions_and_what_it_ignored() -> None:
    world = World(tp=2)
    before = decode_counters(DecodeCounters(), world.receiving)
    assert set(before.values()) == {0}
    world.run(world.submit(list(range(40))))
    after = decode_counters(world.rank.counters, world.receiving)
    assert after.keys() == before.keys()
    assert after["headrace_sessions_opened_total"] == 1
    assert after["headrace_sessions_failed_total"] == 0
    assert after["headrace_received_bytes_total"] > 0
    assert after["headrace_steps_total"] > 0


def test_a_mono_rank_has_no_sessions_to_count() -> None:
    assert not [name for name in decode_counters(DecodeCounters(), None) if "session_" in name]
