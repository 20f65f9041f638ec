"""Prefill beside decode: nobody reads KV that is not there, and nobody waits who need not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.core.messages import Abort
from headrace.core.requests import SamplingParams
from headrace.engine.lane import PrefillLane
from headrace.engine.sequence import Phase
from tests.support.device_world import World
from tests.support.held_track import HeldTrack

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SHORT = SamplingParams(temperature=0.8, seed=3, max_tokens=9, ignore_eos=True)
PENALISED = SamplingParams(temperature=0.0, frequency_penalty=1.5, max_tokens=14, ignore_eos=True)
# A step of the world's engine takes 16 prompt tokens at most.
MAX_TOKENS = 32


class Overlapped(World):
    """A device engine whose prefill steps a test holds."""

    def __init__(self, folder: Path, *, num_blocks: int = 64) -> None:
        self.track = HeldTrack()
        lane = PrefillLane(max_tokens=MAX_TOKENS)
        super().__init__(folder, is_device=True, num_blocks=num_blocks, track=(self.track, lane))

    def decoding(self) -> Overlapped:
        """Have a first request decode; its prompt was handed over, for want of others."""
        self.submit("first", LONG, length=5)
        self.step(3)
        assert self.track.num_held == 0
        return self

    def phase(self, name: str) -> Phase:
        return self.rank.roster[f"{name}/0"].phase


def plain_tokens(folder: Path, asked: list[tuple[str, SamplingParams, int]]) -> dict:
    world = World(folder, is_device=False)
    for name, params, length in asked:
        world.submit(name, params, length=length)
        world.drain()
    return world.tokens()


def drain(world: Overlapped) -> None:
    for _ in range(800):
        world.track.release()
        world.step()
        if not world.rank.has_work:
            return
    raise AssertionError("did not drain")


def test_decodes_go_on_while_a_prompt_is_computed(folder: Path) -> None:
    world = Overlapped(folder).decoding()
    world.submit("second", SHORT, length=15)
    before = len(world.tokens()["first"])
    world.step(10)
    assert len(world.tokens()["first"]) == before + 10
    assert world.phase("second") is Phase.COMPUTING
    assert world.tokens()["second"] == []
    world.track.release()
    world.step(3)
    assert len(world.tokens()["second"]) == 2
    drain(world)
    assert world.tokens() == plain_tokens(folder, [("first", LONG, 5), ("second", SHORT, 15)])


def test_a_prompt_alone_is_handed_over_without_asking(folder: Path) -> None:
    world = Overlapped(folder)
    world.submit("first", LONG, length=15)
    world.step()
    assert (world.phase("first"), world.track.num_handed_over) == (Phase.RUNNING, 1)


def test_no_more_than_the_bound_is_in_flight_and_the_line_waits(folder: Path) -> None:
    world = Overlapped(folder).decoding()
    world.submit("long", SHORT, length=80)
    world.step(8)
    assert world.track.num_held == MAX_TOKENS // 16
    assert world.rank.roster["long/0"].blocks.num_tokens == MAX_TOKENS
    world.track.release()
    world.step(2)
    assert world.rank.roster["long/0"].blocks.num_tokens == MAX_TOKENS + 16
    drain(world)
    assert world.tokens() == plain_tokens(folder, [("first", LONG, 5), ("long", SHORT, 80)])


def test_blocks_of_a_request_that_leaves_come_back_after_its_chunk(folder: Path) -> None:
    world = Overlapped(folder).decoding()
    world.submit("second", SHORT, length=15)
    world.step(2)
    held = set(world.rank.roster["second/0"].blocks.block_ids)
    world.rank.abort(Abort(request_id="second"))
    world.submit("third", SHORT, length=60)
    world.step(4)
    assert held.isdisjoint(world.rank.roster["third/0"].blocks.block_ids)
    assert all(world.pool.num_references(block_id) == 1 for block_id in held)
    drain(world)
    assert world.pool.num_free == 64
    expected = plain_tokens(folder, [("first", LONG, 5), ("third", SHORT, 60)])
    assert {name: world.tokens()[name] for name in expected} == expected


def test_a_rank_with_nothing_but_leaving_blocks_keeps_looking(folder: Path) -> None:
    world = Overlapped(folder).decoding()
    world.submit("second", SHORT, length=15)
    world.step(2)
    for name in ("first", "second"):
        world.rank.abort(Abort(request_id=name))
    assert not world.rank.has_work
    assert world.rank.wants_step
    assert world.rank.step() is False
    world.track.release()
    world.step()
    assert not world.rank.wants_step
    assert world.pool.is_idle


def test_a_history_in_flight_is_no_prefix_for_others(folder: Path) -> None:
    world = Overlapped(folder).decoding()
    prompt = [(7 * index) % 250 for index in range(40)]
    world.submit_ids("one", prompt, SHORT)
    world.step(4)
    world.submit_ids("two", prompt, SHORT)
    world.step(2)
    assert world.rank.roster["two/0"].ledger.cached_tokens == 0
    drain(world)
    world.submit_ids("three", prompt, SHORT)
    drain(world)
    tokens = world.tokens()
    assert tokens["one"] == tokens["two"] == tokens["three"]
    assert world.outputs["three"][-1].ledger.cached_tokens > 0


@pytest.mark.parametrize("is_launched", [True, False])
@pytest.mark.parametrize("num_blocks", [64, 12])
@pytest.mark.parametrize("seed", range(4))
def test_whenever_chunks_end_the_tokens_are_the_plain_steppers(
    folder: Path, seed: int, num_blocks: int, is_launched: bool
) -> None:
    generator = random.Random(seed)
    asked = [
        (f"r{index}", (LONG, SHORT, PENALISED)[index % 3], generator.randrange(1, 56))
        for index in range(9)
    ]
    world = Overlapped(folder, num_blocks=num_blocks)
    world.track.is_launched = is_launched
    for name, params, length in asked:
        world.submit(name, params, length=length)
        for _ in range(generator.randrange(4)):
            world.step()
            world.track.release(generator.randrange(2))
    for _ in range(3000):
        if not world.rank.has_work:
            break
        world.track.release(generator.randrange(2))
        world.step()
    assert world.tokens() == plain_tokens(folder, asked)
    world.track.release(99)
    world.step()
    assert world.pool.num_free == num_blocks
