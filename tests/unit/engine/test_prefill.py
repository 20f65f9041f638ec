"""A prefill replica computes in chunks, sends what is missing, and frees what is sent."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import PrefillRequest, RunStep, SessionDone, SessionStarted
from headrace.core.requests import FinishReason
from headrace.transfer.fake_network import Script as NetworkScript
from tests.support.engine_world import World


def run_steps(world: World) -> list[list[tuple[int, int]]]:
    """Return (start, tokens) of every chunk of every step that the follower was ordered."""
    return [
        [(one.chunk.start, one.chunk.num_tokens) for one in message.sequences]
        for _, message in world.sent
        if isinstance(message, RunStep)
    ]


def test_long_prompts_are_cut_into_chunks_and_the_last_token_is_left_out() -> None:
    world = World(tp=2, config=EngineConfig(max_step_tokens=32))
    world.run(world.submit([7] * 70))
    assert run_steps(world) == [[(0, 32)], [(32, 32)], [(64, 5)]]


def test_short_prompts_share_a_step_in_order_of_arrival() -> None:
    world = World(tp=2, config=EngineConfig(max_step_tokens=64))
    world.run(world.submit([1] * 21), world.submit([2] * 21), world.submit([3] * 41))
    assert run_steps(world) == [[(0, 20), (0, 20), (0, 24)], [(24, 16)]]


def test_tokens_that_the_prefiller_has_are_sent_without_computing_them() -> None:
    world = World(tp=2)
    prompt = [index % 200 for index in range(64)]
    world.run(world.submit(prompt))
    world.settle()
    # The decoder forgets, the prefiller remembers: p = 48 full-block tokens, d = 0.
    world.pool.index.check_invariants()
    while world.pool.num_cached:
        blocks = world.pool.allocate(world.pool.num_free)
        assert blocks is not None
        world.pool.release(blocks)
    world.sent.clear()
    again = world.submit(prompt)
    world.run(again)
    ledger = world.last(again).ledger
    assert ledger is not None
    assert (ledger.cached_tokens, ledger.prefiller_cached_tokens) == (0, 48)
    assert ledger.transferred_tokens == 63
    assert run_steps(world) == [[(48, 15)]]


def test_tokens_that_only_the_decoder_has_are_computed_again_but_not_sent() -> None:
    world = World(tp=2)
    prompt = [index % 200 for index in range(64)]
    world.run(world.submit(prompt[:33]))
    world.settle()
    blocks = world.prefill_pool.allocate(world.prefill_pool.num_free)
    assert blocks is not None
    world.prefill_pool.release(blocks)
    world.sent.clear()
    request = world.submit(prompt)
    world.run(request)
    (asked,) = [message for _, message in world.sent if isinstance(message, PrefillRequest)]
    ledger = world.last(request).ledger
    assert ledger is not None
    assert asked.start == ledger.cached_tokens == 32
    assert run_steps(world) == [[(0, 63)]]
    assert ledger.transferred_tokens == 31
    assert ledger.bytes_received == ledger.bytes_expected


def test_a_prompt_that_the_prefiller_can_never_hold_is_refused_by_name() -> None:
    world = World(tp=2, prefill_blocks=2)
    request = world.submit([1] * 60)
    other = world.submit([2] * 20)
    world.run(request, other)
    end = world.last(request)
    assert end.finish_reason is FinishReason.ERROR
    assert "does not fit the prefill replica's KV cache of 32" in end.error
    assert world.last(other).finish_reason is FinishReason.LENGTH
    world.settle()
    world.check_idle()


def test_blocks_are_freed_only_after_the_last_ranks_last_write() -> None:
    world = World(tp=2, network_script=NetworkScript(held_ranks={1}))
    world.submit([7] * 40)
    for _ in range(6):
        world.turn()
    assert not world.prefill_pool.is_idle
    world.network.script.held_ranks.clear()
    world.settle()
    assert world.prefill_pool.is_idle


def test_more_prompts_than_blocks_wait_their_turn() -> None:
    world = World(tp=2, prefill_blocks=4, num_blocks=64)
    requests = [world.submit([seed] * 50) for seed in range(6)]
    world.run(*requests)
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("turns", range(5))
def test_cancelled_sessions_leave_nothing_behind(turns: int) -> None:
    world = World(tp=4, config=EngineConfig(max_step_tokens=16))
    requests = [world.submit([seed] * 60) for seed in range(5)]
    for _ in range(turns):
        world.turn()
    for request in requests:
        world.abort(request)
    world.settle(40)
    world.check_idle()


def test_the_decoder_hears_what_its_prompt_cost() -> None:
    world = World(tp=2)
    world.run(world.submit([7] * 40))
    order = [type(message) for to, message in world.sent if to == "decode"]
    assert order[:2] == [SessionStarted, SessionDone]


def test_sessions_of_a_dead_decoder_are_dropped() -> None:
    world = World(tp=2, prefill_blocks=4)
    for seed in range(3):
        world.submit([seed] * 50)
    world.turn()
    assert world.lead is not None
    world.lead.forget_peer("decode")
    for rank in world.prefill:
        rank.worker.forget_peer("decode")
    world.mail.clear()
    for _ in range(5):
        world.network.pump()
        world._turn_prefill(world.lead)
    assert not world.lead.has_work
    assert world.prefill_pool.is_idle


def test_a_late_request_of_a_decode_rank_that_is_gone_is_not_begun() -> None:
    world = World(tp=2)
    assert world.lead is not None
    world.lead.forget_peer("decode")
    world.submit([1] * 50)
    world.sent.clear()
    world._turn_prefill(world.lead)
    assert not world.lead.has_work
    assert world.sent == []
    assert world.prefill_pool.is_idle


def test_a_follower_that_hears_of_the_loss_before_the_leads_order_holds_nobody_up() -> None:
    world = World(tp=2)
    assert world.lead is not None
    world.submit([1] * 50)
    world.prefill[1].worker.forget_peer("decode")
    world._turn_prefill(world.lead)
    world.lead.forget_peer("decode")
    world.prefill[0].worker.forget_peer("decode")
    for _ in range(5):
        world.network.pump()
        world._turn_prefill(world.lead)
    assert not world.lead.has_work
    assert world.prefill_pool.is_idle


def test_decoders_in_the_line_are_known_so_that_they_hear_of_life() -> None:
    world = World(tp=2, prefill_blocks=4, network_script=NetworkScript(held_ranks={0, 1}))
    world.submit([1] * 60)
    world.submit([2] * 60)
    for _ in range(3):
        world.turn()
    assert world.lead is not None
    assert world.lead.num_waiting == 1
    assert world.lead.waiting_peers == {"decode"}


def test_a_session_that_cannot_be_sent_is_not_computed() -> None:
    world = World(tp=1)
    request = world.submit([1] * 60)
    world._turn_decode()
    (asked,) = [message for _, message in world.sent if isinstance(message, PrefillRequest)]
    world.mail["prefill0"] = [msgspec.structs.replace(asked, block_ids=[0])]
    world.run(request)
    assert "blocks" in world.last(request).error
    assert run_steps(world) == []
    world.settle()
    world.check_idle()
