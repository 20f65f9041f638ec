"""A decode rank admits, decodes, preempts and ends; with and without a prefiller."""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.requests import FinishReason
from headrace.engine.replay import Script
from tests.support.engine_parts import EOS
from tests.support.engine_world import World

PROMPT = list(range(40))


def make(tp: int, **fields: object) -> World:
    return World(tp=tp, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [0, 1, 2, 4])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 16, 17])
def test_exactly_max_tokens_come_whether_or_not_prefill_is_elsewhere(
    tp: int, max_tokens: int
) -> None:
    world = make(tp)
    request = world.submit(PROMPT, max_tokens=max_tokens, ignore_eos=True)
    world.run(request)
    end = world.last(request)
    assert len(world.tokens(request)) == max_tokens
    assert end.finish_reason is FinishReason.LENGTH
    assert end.ledger is not None
    assert end.ledger.output_tokens == max_tokens
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 100])
def test_the_decoder_computes_one_prompt_token_and_receives_the_rest(length: int) -> None:
    world = make(2)
    request = world.submit([index % 200 for index in range(length)])
    world.run(request)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert ledger.computed_tokens == 1
    assert ledger.transferred_tokens == length - 1
    assert ledger.num_sessions == (length > 1)
    assert ledger.bytes_received == ledger.bytes_expected
    assert world.rank.counters.local_prefills == 0


@pytest.mark.parametrize("tp", [0, 2])
def test_the_same_prompt_again_hits_whole_blocks(tp: int) -> None:
    world = make(tp)
    cached = []
    for _ in range(2):
        request = world.submit(PROMPT)
        world.run(request)
        ledger = world.last(request).ledger
        assert ledger is not None
        cached.append(ledger.cached_tokens)
    assert cached == [0, 32]


@pytest.mark.parametrize("tp", [0, 2])
def test_a_prompt_cached_whole_asks_nobody_and_copies_its_last_block(tp: int) -> None:
    world = make(tp)
    first = world.submit(PROMPT + list(range(100, 108)), max_tokens=2)
    world.run(first)
    again = world.submit(PROMPT + list(range(100, 108)), max_tokens=2)
    world.run(again)
    ledger = world.last(again).ledger
    assert ledger is not None
    assert (ledger.cached_tokens, ledger.num_sessions, ledger.computed_tokens) == (47, 0, 1)
    assert world.tokens(again) == world.tokens(first)


def test_without_a_prefiller_a_decode_rank_computes_and_counts_it() -> None:
    world = make(2)
    world.announce(with_prefill=False)
    request = world.submit(PROMPT)
    world.run(request)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert ledger.computed_tokens == len(PROMPT)
    assert world.rank.counters.local_prefills == 1


def test_a_full_pool_that_gives_up_a_cached_block_asks_for_its_tokens_elsewhere() -> None:
    world = make(2, num_blocks=3)
    prompt = PROMPT + list(range(100, 108))
    world.run(world.submit(prompt, max_tokens=1))
    # Every block is cached: the copy of the last one has no room, so 15 tokens are missing.
    again = world.submit(prompt, max_tokens=1)
    world.run(again)
    ledger = world.last(again).ledger
    assert ledger is not None
    assert (ledger.cached_tokens, ledger.transferred_tokens, ledger.computed_tokens) == (32, 15, 1)
    assert world.rank.counters.local_prefills == 0


def test_a_router_without_a_prefiller_means_local_work_whatever_the_topology_says() -> None:
    world = make(2)
    request = world.submit(PROMPT, prefill_replica="")
    world.run(request)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert (ledger.num_sessions, ledger.computed_tokens) == (0, len(PROMPT))
    assert world.rank.counters.local_prefills == 1


@pytest.mark.parametrize("tp", [0, 2])
def test_preempted_sequences_go_on_as_if_nothing_had_happened(tp: int) -> None:
    config = EngineConfig(prefix_cache=False)
    roomy, tight = make(tp, config=config), make(tp, config=config, num_blocks=9)
    texts = []
    for world in (roomy, tight):
        requests = [world.submit([seed] * 20, max_tokens=60, ignore_eos=True) for seed in (1, 2, 3)]
        world.run(*requests)
        texts.append([world.text(request) for request in requests])
        world.settle()
        world.check_idle()
    assert roomy.rank.counters.preemptions == 0
    assert tight.rank.counters.preemptions > 0
    assert texts[0] == texts[1]
    ledgers = [world.last(f"r{index}").ledger for index in range(3)]
    assert sum(ledger.recomputed_tokens for ledger in ledgers if ledger is not None) > 0


@pytest.mark.parametrize("tp", [0, 2])
def test_choices_share_the_prompt_and_end_apart(tp: int) -> None:
    world = make(tp)
    request = world.submit(PROMPT, num_choices=3)
    world.run(request, num_choices=3)
    assert [len(world.tokens(request, choice)) for choice in range(3)] == [8, 8, 8]
    ledgers = [world.last(request, choice).ledger for choice in range(3)]
    assert [ledger.cached_tokens for ledger in ledgers if ledger is not None] == [0, 39, 39]
    world.settle()
    world.check_idle()


def test_choices_that_cannot_share_at_once_still_come() -> None:
    world = make(2, num_blocks=8, config=EngineConfig(prefix_cache=False))
    request = world.submit([5] * 50, num_choices=3, max_tokens=20, ignore_eos=True)
    world.run(request, num_choices=3)
    assert [len(world.tokens(request, choice)) for choice in range(3)] == [20, 20, 20]
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("tp", [0, 2])
@pytest.mark.parametrize("turns", range(6))
def test_an_abort_at_any_moment_gives_every_block_back(tp: int, turns: int) -> None:
    world = make(tp, config=EngineConfig(max_step_tokens=32))
    request = world.submit(list(range(150)), max_tokens=50, num_choices=2)
    other = world.submit(PROMPT)
    for _ in range(turns):
        world.turn()
    world.abort(request)
    world.run(other)
    world.settle()
    assert world.num_ended(request) == 0
    world.check_idle()


def test_a_request_that_can_never_fit_is_ended_with_one_line() -> None:
    world = make(2, num_blocks=4)
    request = world.submit(PROMPT, max_tokens=100)
    world.turn()
    end = world.last(request)
    assert end.finish_reason is FinishReason.ERROR
    assert "the KV cache holds 64 tokens" in end.error
    world.check_idle()


def test_eos_ends_a_sequence_and_is_no_text() -> None:
    world = make(2, scripts=[Script(tokens=[72, 105, EOS, 33])])
    request = world.submit(PROMPT)
    world.run(request)
    assert world.tokens(request) == [72, 105, EOS]
    assert world.text(request) == "Hi"
    assert world.last(request).finish_reason is FinishReason.STOP


def test_pinned_blocks_stay_under_their_cap() -> None:
    world = make(2, num_blocks=32, config=EngineConfig(pinned_fraction=0.25))
    requests = [world.submit([seed] * 60, max_tokens=2) for seed in range(6)]
    world.turn(prefill=False)
    assert 0 < world.pool.num_pinned <= 8
    world.run(*requests)
    world.settle()
    world.check_idle()
