"""One step ahead of the host, and still token for token what the plain stepper makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.comm.group import SingleGroup
from headrace.core.clock import SystemClock
from headrace.core.launch import EngineConfig
from headrace.core.layouts import CacheLayout, KvSchema
from headrace.core.messages import Abort, Message, Output, Outputs, Submit
from headrace.core.requests import FinishReason, SamplingParams
from headrace.core.sharding import Role
from headrace.engine.decode import DecodeRank
from headrace.engine.device.load import load_device
from headrace.engine.device.stepper import DeviceStepper
from headrace.engine.emitter import Emitter
from headrace.engine.load import load_backend
from headrace.engine.stepper import AnyStepper, Stepper
from headrace.kvcache.pool import BlockPool
from headrace.models.checkpoint.folder import read_config
from headrace.scheduler.admission import Limits
from headrace.text.tokenizer import Tokenizer
from tests.support.engine_specs import make_spec

MAX_TOKENS = 96
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


class World:
    """A mono rank over either stepper, with its outputs by request."""

    def __init__(self, folder: Path, *, is_device: bool, num_blocks: int = 64) -> None:
        engine = EngineConfig(dtype="float32", exact=False, max_step_tokens=16, max_sequences=6)
        self.outputs: dict[str, list[Output]] = {}
        self.pool = BlockPool(num_blocks, engine.block_size, prefix_cache=True)
        make = _device_stepper if is_device else _plain_stepper
        self.rank = DecodeRank(
            config=engine,
            pool=self.pool,
            stepper=make(folder, engine, num_blocks),
            receiving=None,
            emitter=Emitter(
                rank=0, eos_token_ids=(0,), max_model_tokens=MAX_TOKENS, send=self._keep
            ),
            tokenizer=Tokenizer.open(folder),
            clock=SystemClock(),
            limits=Limits(
                max_model_tokens=MAX_TOKENS,
                num_blocks=num_blocks,
                block_size=engine.block_size,
                max_sequences=6,
            ),
        )

    def submit(self, request_id: str, params: SamplingParams, *, length: int = 21) -> None:
        start = sum(map(ord, request_id))
        prompt = [(start + index * 37) % 250 for index in range(length)]
        self.outputs[request_id] = []
        self.rank.submit(
            Submit(request_id=request_id, reply_to="edge", prompt_ids=prompt, params=params)
        )

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.rank.advance()
            if self.rank.wants_step:
                self.rank.step()
            self.pool.check_invariants()

    def drain(self) -> None:
        for _ in range(500):
            if not self.rank.has_work:
                return
            self.step()
        raise AssertionError("did not drain")

    def tokens(self) -> dict[str, list[int]]:
        return {
            request_id: [token for output in outputs for token in output.token_ids]
            for request_id, outputs in self.outputs.items()
        }

    def reasons(self) -> dict[str, FinishReason | None]:
        return {key: outputs[-1].finish_reason for key, outputs in self.outputs.items()}

    def _keep(self, address: str, message: Message) -> bool:
        assert isinstance(message, Outputs)
        for output in message.outputs:
            self.outputs[output.request_id].append(output)
        return True


def _plain_stepper(folder: Path, engine: EngineConfig, num_blocks: int) -> AnyStepper:
    spec = make_spec(folder, folder, Role.MONO, engine=engine)
    backend = load_backend(spec, SingleGroup(), lambda done, total: None).backend
    layout = _layout(backend.schemas, engine, num_blocks)
    region = memoryview(bytearray(layout.num_bytes))
    backend.attach(region, num_blocks=num_blocks, block_size=engine.block_size)
    return Stepper(backend)


def _device_stepper(folder: Path, engine: EngineConfig, num_blocks: int) -> AnyStepper:
    backend = load_device(folder, read_config(folder), engine, max_tokens=MAX_TOKENS)
    backend.allocate(_layout(backend.schemas, engine, num_blocks))
    return DeviceStepper(backend, max_rows=6, max_tokens=MAX_TOKENS)


def _layout(schemas: tuple[KvSchema, ...], engine: EngineConfig, num_blocks: int) -> CacheLayout:
    return CacheLayout(
        layers=schemas,
        first_head=0,
        num_heads=4,
        num_blocks=num_blocks,
        block_size=engine.block_size,
    )


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
