"""KV that does not come ends its request by name, and blocks wait for proof of quiet."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.messages import CancelSession, PrefillRequest
from headrace.core.requests import FinishReason
from headrace.transfer.fake_network import Script as NetworkScript
from tests.support.engine_world import World

PROMPT = list(range(40))


def pump(world: World, seconds: float, *, prefill: bool = True) -> None:
    """Let time pass in small turns."""
    for _ in range(int(seconds)):
        world.turn(seconds=1.0, prefill=prefill)


def test_a_lost_push_is_tried_again_and_in_the_end_the_rank_is_named() -> None:
    world = World(tp=2, network_script=NetworkScript(losing_ranks={1}))
    request = world.submit(PROMPT, deadline_s=10.0)
    pump(world, 12)
    assert world.num_ended(request) == 0
    # Each of three tries has the deadline to itself.
    pump(world, 24)
    end = world.last(request)
    assert end.finish_reason is FinishReason.ERROR
    assert "prefill.1" in end.error
    assert end.error.endswith("(tried 3 times)")
    assert end.ledger is not None
    assert (end.ledger.num_retries, end.ledger.num_sessions) == (2, 3)
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("max_retries", [0, 1, 4])
def test_kv_that_does_not_come_is_asked_for_as_often_as_the_edge_allows(max_retries: int) -> None:
    world = World(tp=2, network_script=NetworkScript(failing_ranks={1}))
    request = world.submit(PROMPT, max_retries=max_retries)
    world.run(request)
    end = world.last(request)
    assert end.finish_reason is FinishReason.ERROR
    assert end.error.endswith(f"(tried {max_retries + 1} times)")
    assert end.ledger is not None
    assert end.ledger.num_sessions == max_retries + 1


def test_a_push_lost_once_costs_time_and_nothing_else() -> None:
    undisturbed = World(tp=2)
    expected = undisturbed.submit(PROMPT)
    undisturbed.run(expected)
    world = World(tp=2, network_script=NetworkScript(losing_ranks={0}))
    request = world.submit(PROMPT, deadline_s=10.0)
    pump(world, 5)
    world.network.script.losing_ranks.clear()
    pump(world, 10)
    world.run(request)
    assert world.tokens(request) == undisturbed.tokens(expected)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert (ledger.num_retries, ledger.transferred_tokens) == (1, len(PROMPT) - 1)
    world.check_idle()


def test_a_request_aborted_between_two_tries_leaves_nothing() -> None:
    world = World(tp=2, network_script=NetworkScript(losing_ranks={1}))
    request = world.submit(PROMPT, deadline_s=10.0)
    pump(world, 15)
    world.abort(request)
    world.settle()
    world.check_idle()


def test_a_replica_that_dies_is_asked_again_once_it_is_back_and_not_before() -> None:
    world = World(tp=2)
    request = world.submit(PROMPT)
    world.turn(prefill=False)
    world.announce(with_prefill=False)
    world.turn(prefill=False)
    # With no prefiller alive the decode rank computes the prompt itself, and says so.
    world.run(request)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert (ledger.num_retries, ledger.computed_tokens) == (1, len(PROMPT))
    assert world.rank.counters.local_prefills == 1
    assert world.pool.is_idle


def test_a_deadline_is_told_with_where_the_late_rank_was_last_heard() -> None:
    world = World(tp=1)
    assert world.receiving is not None
    told: list[str] = []
    world.receiving._on_deadline = told.append
    world.submit(PROMPT, deadline_s=5.0)
    world.turn(prefill=False)
    world.heartbeat(0, progress=1, headrace_step=12, headrace_layer=3)
    pump(world, 6, prefill=False)
    (line,) = told
    assert line.startswith("session decode.1-0: prefill rank prefill.0 (generation 1) made no")
    assert line.endswith("last heard in step 12, layer 3")
    assert [wait.session_id for wait in world.receiving.waits()] == ["decode.1-0", "decode.1-1"]


def test_a_post_that_fails_every_time_ends_the_request_with_the_rank_named() -> None:
    world = World(tp=2, network_script=NetworkScript(failing_ranks={1}))
    request = world.submit(PROMPT)
    pump(world, 12)
    assert "prefill.1" in world.last(request).error
    world.settle()
    world.check_idle()


def test_a_peers_long_queue_is_no_reason_to_give_up() -> None:
    world = World(tp=1)
    request = world.submit(PROMPT, deadline_s=10.0)
    for second in range(30):
        world.heartbeat(0, progress=second)
        world.turn(seconds=1.0, prefill=False)
    assert world.num_ended(request) == 0
    world.run(request)
    assert len(world.tokens(request)) == 8


def test_silence_of_the_whole_replica_ends_the_request_and_quarantines_its_blocks() -> None:
    world = World(tp=2)
    request = world.submit(PROMPT, deadline_s=5.0)
    pump(world, 25, prefill=False)
    assert world.last(request).finish_reason is FinishReason.ERROR
    assert world.pool.num_quarantined == 3 * 3, "three tries, none of whose writers was heard"
    world.announce(with_prefill=False)  # the replica is known to be dead
    world.turn(prefill=False)
    assert world.pool.num_quarantined == 0
    assert world.pool.is_idle


def test_blocks_of_an_aborted_request_wait_for_every_rank_to_be_quiet() -> None:
    world = World(tp=2, network_script=NetworkScript(held_ranks={1}))
    request = world.submit(PROMPT)
    for _ in range(3):
        world.turn()
    world.abort(request)
    world.settle()
    assert world.pool.num_quarantined == 3, "rank 1 still has a write under way"
    world.network.script.held_ranks.clear()
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("duplicate", [0.0, 1.0])
def test_reordered_and_repeated_writes_change_nothing(duplicate: float) -> None:
    script = NetworkScript(delay_pumps=2, is_reordered=True, duplicate=duplicate, seed=3)
    world = World(tp=4, network_script=script)
    requests = [world.submit([seed] * 70) for seed in range(4)]
    world.run(*requests)
    for request in requests:
        ledger = world.last(request).ledger
        assert ledger is not None
        assert ledger.bytes_received == ledger.bytes_expected > 0


def test_the_kv_received_is_the_kv_computed() -> None:
    world = World(tp=2)
    seen: list[list[int]] = []
    run = world.backend.run

    def spy(rows, **options):  # noqa: ANN001, ANN003, ANN202
        cache = world.backend._caches[1]
        for row in rows:
            blocks = list(row.block_ids)
            kv = np.asarray(cache[:, :, blocks].flatten(2, 3)[:, :, : row.start])
            seen.append(kv[0, 0, :, 0].astype(int).tolist())
            assert (kv == kv[0, 0, :, 0][None, None, :, None]).all()
        return run(rows, **options)

    world.backend.run = spy  # type: ignore[method-assign]
    world.run(world.submit([200, 3, 77, *PROMPT], max_tokens=1))
    assert seen == [[200, 3, 77, *PROMPT][:-1]]


def test_blocks_come_back_when_one_rank_of_the_replica_died_and_the_other_lives() -> None:
    world = World(tp=2)
    assert world.receiving is not None
    request = world.submit(PROMPT)
    world.turn(prefill=False)
    world.announce(ranks=(0,), is_up=False)
    world.turn(prefill=False)
    assert world.pool.num_quarantined == 3, "rank 0 may still write"
    world.announce(ranks=(), is_up=False)
    world.run(request)
    assert world.pool.num_quarantined == 0
    assert world.pool.is_idle


def test_a_lead_that_is_gone_is_not_spoken_to_any_more() -> None:
    world = World(tp=1)
    world.submit(PROMPT)
    world.turn(prefill=False)
    world.announce(with_prefill=False)
    world.turn(prefill=False)
    assert not [to for to, message in world.sent if isinstance(message, CancelSession)]


def test_session_and_immediate_ids_owe_nothing_to_the_clients_id() -> None:
    world = World(tp=1)
    for request_id in ("same", "same-again"):
        world.submit(PROMPT, request_id=request_id)
    world.turn(prefill=False)
    requests = [message for _, message in world.sent if isinstance(message, PrefillRequest)]
    assert [one.session_id for one in requests] == ["decode.1-0", "decode.1-1"]
    assert len({one.imm for one in requests}) == 2


def test_giving_up_tells_the_prefill_replica_once() -> None:
    world = World(tp=2)
    request = world.submit(PROMPT)
    world.turn(prefill=False)
    world.abort(request)
    world.settle()
    cancels = [to for to, message in world.sent if isinstance(message, CancelSession)]
    assert cancels == ["prefill0", "prefill1"], "the lead, who tells its follower"
