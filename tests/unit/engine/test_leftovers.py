"""However a request ends, neither side keeps a block or a session of it."""

from __future__ import annotations

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import PrefillRequest, Resumed
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
