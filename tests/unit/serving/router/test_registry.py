"""The router's memory: whom it believes, whom it calls late, what it counts."""

import pytest

from headrace.core.errors import RequestError
from headrace.core.messages import Shutdown, Topology
from headrace.serving.fleet import Limits
from headrace.serving.router.config import RegistryConfig
from headrace.serving.router.registry import Registry
from tests.support.serving_fakes import ManualClock, beat, beat_all, re_forming, ready, topology


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> Registry:
    made = Registry(RegistryConfig(late_s=3, dead_s=15, stuck_s=30), clock=clock)
    made.on_message(topology())
    beat_all(made, topology())
    return made


def test_an_empty_deployment_is_not_ready(clock: ManualClock) -> None:
    registry = Registry(RegistryConfig(), clock=clock)
    assert registry.readiness().reason == "no replica has joined yet"
    registry.on_message(Topology(replicas=topology().replicas[:1]))
    assert registry.readiness().reason == "no decode replica has joined"
    with pytest.raises(RequestError, match="no decode rank is alive") as caught:
        registry.place(num_sequences=1)
    assert caught.value.status == 503


def test_a_rank_that_joined_is_not_ready_before_its_first_sign_of_life(clock: ManualClock) -> None:
    registry = Registry(RegistryConfig(), clock=clock)
    registry.on_message(topology(decode_ranks=1, prefill_ranks=1))
    registry.on_message(beat("prefill0", 0))
    assert registry.readiness().reason == "decode0.0 has not been heard yet"


def test_a_stopped_rank_turns_ready_red_and_green_when_it_goes_on(
    registry: Registry, clock: ManualClock
) -> None:
    assert registry.readiness().is_ready
    clock.time_s += 2
    for name, rank in (("decode0", 0), ("decode0", 1), ("prefill0", 0)):
        registry.on_message(beat(name, rank))
    clock.time_s += 2
    assert registry.readiness().reason == "prefill0.1 has been silent for 4.0 s"
    registry.on_message(beat("prefill0", 1))
    assert registry.readiness().is_ready


def test_work_without_progress_is_stuck_however_lively_the_heartbeats(
    registry: Registry, clock: ManualClock
) -> None:
    registry.on_message(beat("decode0", 1, progress=5, has_work=True))
    for _ in range(31):
        clock.time_s += 1
        for name, rank in (("decode0", 0), ("prefill0", 0), ("prefill0", 1)):
            registry.on_message(beat(name, rank))
        registry.on_message(beat("decode0", 1, progress=5, has_work=True))
    assert (
        registry.readiness().reason
        == "decode0.1 has made no progress for 31.0 s with requests waiting"
    )
    registry.on_message(beat("decode0", 1, progress=6, has_work=True))
    assert registry.readiness().is_ready


def test_an_idle_rank_needs_no_progress(registry: Registry, clock: ManualClock) -> None:
    for _ in range(100):
        clock.time_s += 1
        beat_all(registry, topology())
    assert registry.readiness().is_ready


def test_a_heartbeat_of_another_generation_is_refused_and_counted(
    registry: Registry, clock: ManualClock
) -> None:
    clock.time_s += 4
    beat_all(registry, topology(generation=0))
    registry.on_message(beat("stranger", 0))
    assert not registry.readiness().is_ready
    assert registry.counters()["headrace_stale_heartbeats_total"] == 5
    beat_all(registry, topology())
    assert registry.readiness().is_ready


def test_requests_go_round_the_ranks_and_name_a_prefill_replica(registry: Registry) -> None:
    first, second = registry.place(num_sequences=2), registry.place(num_sequences=1)
    assert (first.replica, first.rank, first.generation) == ("decode0", 0, 1)
    assert first.address == "ipc://decode0.0.1"
    assert first.prefill_replica == second.prefill_replica == "prefill0"
    assert second.rank == 1
    assert registry.place(num_sequences=1).rank == 1


def test_a_finished_request_is_load_no_longer(registry: Registry) -> None:
    first = registry.place(num_sequences=1)
    registry.note_first_output(first)
    registry.release(first)
    assert registry.place(num_sequences=1).rank == first.rank


def two_prefillers(generation: int = 1) -> Topology:
    one, decode = topology(prefill_ranks=1, decode_ranks=1, generation=generation).replicas
    other = type(one)(name="prefill1", role=one.role, sharding=one.sharding, ranks=one.ranks)
    return Topology(replicas=[one, other, decode])


def join(registry: Registry, members: Topology) -> None:
    registry.on_message(members)
    beat_all(registry, members)


def test_a_restarted_prefill_replica_begins_without_its_old_load(clock: ManualClock) -> None:
    registry = Registry(RegistryConfig(), clock=clock)
    join(registry, two_prefillers())
    old = [registry.place(num_sequences=1) for _ in range(3)]
    join(registry, two_prefillers(generation=2))
    for placement in old:
        registry.note_first_output(placement)
    names = [registry.place(num_sequences=1).prefill_replica for _ in range(4)]
    assert names == ["prefill0", "prefill1"] * 2


def test_the_less_busy_prefill_replica_is_chosen_until_prompts_are_done(clock: ManualClock) -> None:
    registry = Registry(RegistryConfig(), clock=clock)
    join(registry, two_prefillers())
    first, second = registry.place(num_sequences=1), registry.place(num_sequences=1)
    assert (first.prefill_replica, second.prefill_replica) == ("prefill0", "prefill1")
    registry.note_first_output(second)
    assert registry.place(num_sequences=1).prefill_replica == "prefill1"


def test_a_prefill_replica_with_a_dead_rank_gets_nothing_and_the_fallback_is_counted(
    registry: Registry, clock: ManualClock
) -> None:
    for _ in range(16):
        clock.time_s += 1
        beat_all(registry, Topology(replicas=topology().replicas[1:]))
        registry.on_message(beat("prefill0", 0))
    placement = registry.place(num_sequences=1)
    assert placement.prefill_replica == ""
    assert "no prefill replica is alive" in placement.reason
    assert registry.counters()["headrace_local_prefills_total"] == 1


def test_a_dead_rank_takes_its_lockstep_group_with_it(
    registry: Registry, clock: ManualClock
) -> None:
    for _ in range(16):
        clock.time_s += 1
        registry.on_message(beat("decode0", 0))
    with pytest.raises(RequestError, match="no decode rank is alive"):
        registry.place(num_sequences=1)


def test_mono_needs_no_prefill_replica_and_counts_no_fallback(clock: ManualClock) -> None:
    registry = Registry(RegistryConfig(), clock=clock)
    registry.on_message(topology(mono=True))
    beat_all(registry, topology(mono=True))
    placement = registry.place(num_sequences=1)
    assert (placement.replica, placement.prefill_replica) == ("mono0", "")
    assert registry.counters()["headrace_local_prefills_total"] == 0


def test_a_restarted_rank_begins_without_its_old_load(registry: Registry) -> None:
    old = [registry.place(num_sequences=1) for _ in range(4)]
    members = topology(generation=2)
    registry.on_message(members)
    beat_all(registry, members)
    for placement in old:
        registry.note_first_output(placement)
        registry.release(placement)
    ranks = [registry.place(num_sequences=1).rank for _ in range(4)]
    assert ranks == [0, 1, 0, 1]


def test_limits_are_those_of_the_smallest_replica(registry: Registry) -> None:
    assert registry.limits() == Limits()
    registry.on_message(ready("decode0", 0, max_tokens=500))
    registry.on_message(ready("decode0", 1, max_tokens=600))
    registry.on_message(ready("prefill0", 0, max_tokens=900, num_blocks=20))
    assert registry.limits() == Limits(max_request_tokens=500, max_prompt_tokens=320)


def test_loads_are_what_the_last_heartbeat_said(registry: Registry) -> None:
    registry.on_message(beat("decode0", 1, num_running=3, num_waiting=2, free_blocks=7))
    load = registry.rank_loads()[1]
    assert (load.replica, load.rank, load.is_up) == ("decode0", 1, True)
    assert (load.num_running, load.num_waiting, load.free_blocks) == (3, 2, 7)


def test_messages_for_others_change_nothing(registry: Registry) -> None:
    registry.on_message(Shutdown())
    assert registry.readiness().is_ready


def test_a_replica_that_re_forms_gets_nothing_and_ready_names_it(registry: Registry) -> None:
    registry.on_message(re_forming(topology(), "decode0", without=[1]))
    assert registry.readiness().reason == "decode0 re-forms without rank 1"
    with pytest.raises(RequestError, match="is alive: decode0 re-forms without rank 1") as caught:
        registry.place(num_sequences=1)
    assert caught.value.status == 503
    members = topology(generation=2)
    registry.on_message(members)
    assert registry.place(num_sequences=1).generation == 2, "a late rank, but nothing better"
    beat_all(registry, members)
    assert registry.readiness().is_ready


def test_survivors_are_not_blamed_while_their_replica_re_forms(
    registry: Registry, clock: ManualClock
) -> None:
    registry.on_message(re_forming(topology(), "decode0", without=[1]))
    clock.time_s += 20
    for rank in (0, 1):
        registry.on_message(beat("prefill0", rank))
    assert registry.readiness().reason == "decode0 re-forms without rank 1"


def test_a_prefill_replica_that_re_forms_is_named_to_the_decoder_when_there_is_no_other(
    registry: Registry, clock: ManualClock
) -> None:
    registry.on_message(re_forming(topology(), "prefill0", without=[0]))
    placement = registry.place(num_sequences=1)
    assert placement.prefill_replica == "prefill0"
    assert "prefill0 re-forms" in placement.reason
    assert registry.counters()["headrace_local_prefills_total"] == 0
    join(registry, two_prefillers())
    registry.on_message(re_forming(two_prefillers(), "prefill0"))
    assert registry.place(num_sequences=1).prefill_replica == "prefill1"


def test_ranks_that_are_away_show_as_not_up(registry: Registry) -> None:
    registry.on_message(re_forming(topology(), "decode0", without=[1]))
    up = {(load.replica, load.rank): load.is_up for load in registry.rank_loads()}
    assert up == {
        ("decode0", 0): False,
        ("decode0", 1): False,
        ("prefill0", 0): True,
        ("prefill0", 1): True,
    }


def test_limits_outlast_a_restart(registry: Registry) -> None:
    registry.on_message(ready("decode0", 1, max_tokens=500))
    registry.on_message(re_forming(topology(), "decode0", without=[1]))
    assert registry.limits().max_request_tokens == 500
    registry.on_message(Topology(replicas=topology().replicas[:1]))
    assert registry.limits() == Limits()


def test_a_request_that_never_arrived_turns_ready_red(
    registry: Registry, clock: ManualClock
) -> None:
    placement = registry.place(num_sequences=1)
    for _ in range(31):
        clock.time_s += 1
        beat_all(registry, topology())
    assert registry.readiness().reason == (
        "decode0.0 has made no progress for 31.0 s with requests waiting"
    )
    registry.note_first_output(placement)
    registry.release(placement)
    beat_all(registry, topology())
    assert registry.readiness().is_ready
