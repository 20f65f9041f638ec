"""One step ahead of the host, and still token for token what the plain stepper makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.messages import Abort
from headrace.core.requests import FinishReason, SamplingParams
from tests.support.device_world import MAX_TOKENS, World

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
KINDS = {
    "greedy": GREEDY,
    "one token": SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
    "plain": SamplingParams(temperature=0.8, seed=3, max_tokens=9, ignore_eos=True),
    "top-k": SamplingParams(temperature=1.0, top_k=5, seed=4, max_tokens=11, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.0, frequency_penalty=1.5, presence_penalty=0.5, max_tokens=14, ignore_eos=True
    ),
    "logprobs": SamplingParams(
        temperature=0.0, logprobs=True, top_logprobs=3, max_tokens=5, ignore_eos=True
    ),
    "stops": SamplingParams(temperature=1.0, seed=8, max_tokens=30, stop_token_ids=list(range(90))),
}


def both(folder: Path, play: Callable[[World], None], *, num_blocks: int = 64) -> list[World]:
    worlds = [World(folder, is_device=is_device, num_blocks=num_blocks) for is_device in (0, 1)]
    for world in worlds:
        play(world)
        world.drain()
    assert worlds[0].tokens() == worlds[1].tokens()
    assert worlds[0].reasons() == worlds[1].reasons()
    return worlds


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_alone_gets_the_tokens_of_the_plain_stepper(folder: Path, kind: str) -> None:
    worlds = both(folder, lambda world: world.submit(kind, KINDS[kind]))
    assert len(worlds[1].tokens()[kind]) > 0


def test_requests_that_come_and_go_get_the_tokens_of_the_plain_stepper(folder: Path) -> None:
    def play(world: World) -> None:
        for turn, (kind, params) in enumerate(KINDS.items()):
            world.submit(f"{kind} {turn}", params, length=3 + 9 * turn)
            world.step(turn % 3)

    worlds = both(folder, play)
    assert all(reason is not None for reason in worlds[1].reasons().values())


def test_logprobs_are_those_of_the_plain_stepper(folder: Path) -> None:
    plain, device = both(folder, lambda world: world.submit("a", KINDS["logprobs"]))
    for left, right in zip(plain.outputs["a"], device.outputs["a"], strict=True):
        assert left.logprobs is not None
        assert right.logprobs is not None
        (one,), (other,) = left.logprobs, right.logprobs
        assert one.token_id == other.token_id
        assert other.logprob == pytest.approx(one.logprob, abs=1e-4)
        assert [token for token, _ in other.top] == [token for token, _ in one.top]


def test_preempted_sequences_go_on_as_if_nothing_had_happened(folder: Path) -> None:
    def play(world: World) -> None:
        for name in "abcd":
            world.submit(name, SamplingParams(temperature=0.9, seed=1, max_tokens=40))

    calm = both(folder, play)
    tight = both(folder, play, num_blocks=9)
    assert tight[1].rank.counters.preemptions > 0
    assert tight[1].tokens() == calm[1].tokens()


def test_an_aborted_request_leaves_its_blocks_and_its_neighbours_alone(folder: Path) -> None:
    def play(world: World) -> None:
        world.submit("stays", GREEDY)
        world.submit("leaves", KINDS["penalties"])
        world.step(6)
        world.rank.abort(Abort(request_id="leaves"))
        world.outputs["leaves"] = world.outputs["leaves"][:1]
        world.submit("follows", KINDS["penalties"])

    worlds = [World(folder, is_device=is_device) for is_device in (False, True)]
    for world in worlds:
        play(world)
        world.drain()
        assert world.pool.num_free == 64
    assert worlds[0].tokens()["stays"] == worlds[1].tokens()["stays"]
    assert worlds[0].tokens()["follows"] == worlds[1].tokens()["follows"]


def test_no_token_is_drawn_past_the_longest_context(folder: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    worlds = both(folder, lambda world: world.submit("long", params, length=MAX_TOKENS - 4))
    assert len(worlds[1].tokens()["long"]) == 4
    assert worlds[1].reasons()["long"] is FinishReason.LENGTH
