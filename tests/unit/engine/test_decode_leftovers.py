"""However a request ends, neither side keeps a block or a session of it."""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import CancelSession, PrefillRequest, Resumed
from headrace.core.requests import FinishReason
from headrace.transfer.fake_network import Script as NetworkScript
from tests.support.engine_world import World

PROMPT = list(range(40))
NO_CACHE = EngineConfig(prefix_cache=False)


def test_a_prompt_that_only_the_prefiller_cannot_hold_ends_with_no_token() -> None:
    world = World(tp=2, prefill_blocks=2)
    request = world.submit(PROMPT)
    world.run(request)
    end = world.last(request)
    assert end.finish_reason is FinishReason.ERROR
    assert "does not fit the prefill replica's KV cache of 32" in end.error
    assert world.tokens(request) == []
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["preempted", "resumed"])
def test_what_outgrew_the_prefiller_on_its_way_is_computed_by_the_decoder(
    is_elsewhere: bool,
) -> None:
    # 40 prompt tokens fit the prefiller's 48; prompt and output do not.
    world = World(tp=2, num_blocks=8, prefill_blocks=3, config=NO_CACHE)
    fields = {"max_tokens": 60, "ignore_eos": True}
    whole = world.submit(PROMPT, **fields)
    world.run(whole)
    if is_elsewhere:
        resumed = [Resumed(choice=0, output_ids=world.tokens(whole)[:20])]
        requests = [world.submit(PROMPT, resumed=resumed, **fields)]
    else:
        requests = [world.submit(PROMPT, **fields) for _ in range(2)]
    world.run(*requests)
    assert world.text(requests[-1]) == world.text(whole)[20 if is_elsewhere else 0 :]
    assert world.rank.counters.preemptions > 0 or is_elsewhere
    assert world.rank.counters.local_prefills == 1
    world.settle()
    world.check_idle()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_choices": 65}, "n=65: this server decodes at most 64"),
        ({"max_tokens": 5000}, "this model's context is 4096 tokens"),
        ({"max_tokens": 500}, "the KV cache holds 512 tokens"),
    ],
    ids=["n", "context", "pool"],
)
def test_what_only_the_decode_rank_refuses_never_reaches_the_prefiller(
    fields: dict[str, int], message: str
) -> None:
    world = World(tp=2, config=EngineConfig(max_sequences=64))
    request = world.submit(PROMPT, **fields)
    world.turn()
    assert message in world.outputs[request][0].error
    assert not any(isinstance(one, PrefillRequest) for _, one in world.sent)
    world.check_idle()


@pytest.mark.parametrize("tp", [0, 1, 2])
@pytest.mark.parametrize("later", range(4), ids="{}-turns-later".format)
def test_aborting_preempted_sequences_leaves_nothing(tp: int, later: int) -> None:
    world = World(tp=tp, num_blocks=8, config=NO_CACHE)
    requests = [world.submit([seed] * 20, max_tokens=90, ignore_eos=True) for seed in range(4)]
    for _ in range(500):
        world.turn()
        if world.rank.counters.preemptions:
            break
    assert world.rank.counters.preemptions
    for _ in range(later):
        world.turn()
    for request in requests:
        world.abort(request)
    assert not world.rank.has_work
    world.settle()
    world.check_idle()
    again = world.submit(PROMPT)
    world.run(again)
    assert len(world.tokens(again)) == 8


@pytest.mark.parametrize("moment", ["waiting", "receiving"])
def test_aborting_a_sequence_that_goes_on_elsewhere_leaves_nothing(moment: str) -> None:
    world = World(tp=2, network_script=NetworkScript(held_ranks={0, 1}))
    resumed = [Resumed(choice=choice, output_ids=[70] * choice) for choice in range(3)]
    request = world.submit(PROMPT, num_choices=3, resumed=resumed)
    for _ in range(0 if moment == "waiting" else 4):
        world.turn()
    world.abort(request)
    world.network_script.held_ranks.clear()
    world.settle()
    world.check_idle()


def test_transfers_expire_each_at_its_own_time_on_both_sides() -> None:
    """One whose writes keep coming must not hide those that lost theirs."""
    network = NetworkScript(losing_ranks={0})
    config = EngineConfig(prefix_cache=False, max_step_tokens=16)
    world = World(tp=1, num_blocks=64, network_script=network, config=config)
    stuck = [world.submit([seed] * 17, deadline_s=10.0) for seed in (1, 2)]
    for _ in range(4):
        world.turn()
    assert world.receiving is not None
    assert len(world.receiving) == 2
    network.losing_ranks.clear()
    alive = world.submit([3] * 200, deadline_s=10.0)
    cancelled: list[float] = []
    for _ in range(60):
        world.turn(seconds=0.9)
        num_cancelled = sum(isinstance(one, CancelSession) for _, one in world.sent)
        cancelled += [world.clock.time_s] * (num_cancelled - len(cancelled))
    assert cancelled == [pytest.approx(10.8)] * 2, "in the first turn after their ten seconds"
    world.run(alive, *stuck)
    retries = {name: world.last(name).ledger.num_retries for name in (alive, *stuck)}
    assert retries == {alive: 0, stuck[0]: 1, stuck[1]: 1}
    world.settle()
    world.check_idle()
