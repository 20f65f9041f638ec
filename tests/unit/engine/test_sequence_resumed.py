"""A request that goes on elsewhere: what its client has, plus the rest, is what it would have had.

For every split of an answer: output up to it, then a fresh deployment that is told of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.launch import EngineConfig
from headrace.core.messages import Resumed
from headrace.core.requests import FinishReason, Ledger
from headrace.engine.replay import Script
from headrace.engine.sequence import Phase
from tests.support.engine_parts import EOS
from tests.support.engine_world import World

PROMPT = list(range(40))


@dataclass
class Answer:
    """What a client has of one choice: a token and its text per output, then why it ended."""

    tokens: list[int]
    texts: list[str]
    reason: FinishReason | None
    ledger: Ledger


def answer(world: World, request: str, choice: int) -> Answer:
    outputs = [out for out in world.outputs[request] if out.choice == choice]
    assert all(len(out.token_ids) == 1 for out in outputs), [out.error for out in outputs]
    ledger = outputs[-1].ledger
    assert ledger is not None
    tokens = [token for out in outputs for token in out.token_ids]
    return Answer(tokens, [out.text for out in outputs], outputs[-1].finish_reason, ledger)


def play(script: list[int], *, tp: int, n: int, resumed: tuple[Resumed, ...] = (), **params):
    """Run one request in a world of its own and return its choices that ran, by index."""
    world = World(tp=tp, scripts=[Script(tokens=script)], config=EngineConfig(prefix_cache=False))
    request = world.submit(PROMPT, num_choices=n, resumed=resumed, num_retries=1, **params)
    chosen = [each.choice for each in resumed] or list(range(n))
    world.run(request, num_choices=len(chosen))
    answers = {choice: answer(world, request, choice) for choice in chosen}
    world.settle()
    world.check_idle()
    return answers


def check_split(script: list[int], splits: list[int], *, tp: int = 1, **params) -> None:
    """Stop choice i after ``splits[i]`` tokens, go on in a fresh world, compare with the whole."""
    whole = play(script, tp=tp, n=len(splits), **params)
    open_ = {i: k for i, k in enumerate(splits) if k < len(whole[i].tokens)}
    if not open_:
        return
    resumed = tuple(Resumed(choice=i, output_ids=whole[i].tokens[:k]) for i, k in open_.items())
    rest = play(script, tp=tp, n=len(splits), resumed=resumed, **params)
    for i, k in open_.items():
        assert whole[i].tokens[:k] + rest[i].tokens == whole[i].tokens
        assert whole[i].texts[:k] + rest[i].texts == whole[i].texts
        assert rest[i].reason is whole[i].reason
        assert rest[i].ledger.output_tokens == len(whole[i].tokens)
        assert rest[i].ledger.reasoning_tokens == whole[i].ledger.reasoning_tokens
        # Where it had output, prompt and output but the last token were brought twice.
        assert rest[i].ledger.recomputed_tokens == (len(PROMPT) + k - 1 if k else 0)


SAMPLED = {"temperature": 16.0, "seed": 11, "max_tokens": 12, "ignore_eos": True}


@pytest.mark.parametrize("tp", [0, 2])
@pytest.mark.parametrize(
    ("script", "params"),
    [
        ([*b"plain", EOS], {}),
        ([*b"to the limit"], {"max_tokens": 5}),
        ([*"\uc0bc \U0001f469\u200d\U0001f467".encode(), EOS], {"max_tokens": 40}),
        ([*"\uc0bc \U0001f469\u200d\U0001f467".encode()], {"max_tokens": 9}),
        ([*b"stop at ENDING now", EOS], {"stop": ["ENDING"], "max_tokens": 40}),
        ([*b"stop at ENDxING now", EOS], {"stop": ["ENDING"], "max_tokens": 40}),
        ([*b"a stop ", 0xC3, 0xA9, *b"! shown"], {"stop": ["\u00e9!"], "include_stop": True}),
        ([*b"<think>x</think>y", EOS], {"max_tokens": 40}),
        ([EOS, 65, EOS, 66, 67], {"ignore_eos": True, "max_tokens": 5}),
        ([65] * 30, SAMPLED),
        ([65] * 30, SAMPLED | {"presence_penalty": 90.0, "frequency_penalty": 30.0}),
        ([65] * 30, SAMPLED | {"repetition_penalty": 9.0, "top_k": 9}),
    ],
    ids=str,
)
def test_at_every_split_a_stream_goes_on_as_it_would_have(
    script: list[int], params: dict, tp: int
) -> None:
    for split in range(len(script)):
        check_split(script, [split], tp=tp, **params)


def test_sampling_at_this_temperature_depends_on_seed_position_and_penalties() -> None:
    # Or else the test above would show nothing of them.
    penalised = {"presence_penalty": 90.0, "frequency_penalty": 30.0}
    variants = [SAMPLED, SAMPLED | {"seed": 12}, SAMPLED | penalised]
    drawn = [play([65] * 30, tp=0, n=2, **params) for params in variants]
    seen = [tuple(each[choice].tokens) for each in drawn for choice in (0, 1)]
    assert len(set(seen)) == 6


@given(
    script=st.lists(st.sampled_from([*b"abEND\n", 0xC3, 0xA9, 0xF0, EOS]), max_size=20),
    splits=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    tp=st.sampled_from([0, 1]),
    stop=st.lists(st.sampled_from(["END", "\n", "ab", "\u00e9"]), max_size=2),
    include_stop=st.booleans(),
    temperature=st.sampled_from([0.0, 30.0]),
    presence_penalty=st.sampled_from([0.0, 60.0]),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_any_choices_go_on_from_anywhere(script: list[int], splits: list[int], **params) -> None:
    check_split(script, splits, max_tokens=12, ignore_eos=bool(params["seed"] % 2), **params)


def test_choices_that_ended_before_do_not_run_again() -> None:
    world = World()
    resumed = [Resumed(choice=1, output_ids=[70, 71]), Resumed(choice=3, output_ids=[72])]
    request = world.submit(PROMPT, num_choices=4, resumed=resumed)
    assert [each.choice for each in world.rank.roster.of_request(request)] == [1, 3]
    world.run(request, num_choices=2)
    assert {out.choice for out in world.outputs[request]} == {1, 3}


def test_choices_without_output_share_their_prompt_still() -> None:
    world = World()
    resumed = [Resumed(choice=i, output_ids=[70] * (i == 1)) for i in range(4)]
    request = world.submit(PROMPT, num_choices=4, resumed=resumed)
    assert len(world.rank.roster.in_phase(Phase.WAITING)) == 2
    world.run(request, num_choices=4)
    sessions = [answer(world, request, choice).ledger.num_sessions for choice in range(4)]
    assert sessions == [1, 1, 0, 0]


def test_the_ledger_goes_on_where_the_client_has_it() -> None:
    world = World()
    before = Ledger(cached_tokens=3, transferred_tokens=36, computed_tokens=1, queue_s=2.0)
    resumed = [Resumed(choice=0, output_ids=[70], ledger=before)]
    request = world.submit(PROMPT, resumed=resumed, num_retries=2)
    world.run(request)
    ledger = world.last(request).ledger
    assert ledger is not None
    assert (ledger.cached_tokens, ledger.transferred_tokens, ledger.computed_tokens) == (3, 36, 1)
    assert (ledger.recomputed_tokens, ledger.num_retries, ledger.queue_s) == (40, 2, 2.0)
    assert before.num_retries == 0, "what was handed in is not written to"
    assert ledger.prefiller_cached_tokens == 0


def test_limits_count_from_the_requests_own_prompt() -> None:
    world = World(max_model_tokens=48)
    resumed = [Resumed(choice=0, output_ids=[70] * 6)]
    request = world.submit(PROMPT, resumed=resumed, max_tokens=8, ignore_eos=True)
    world.run(request)
    assert world.last(request).finish_reason is FinishReason.LENGTH
    assert len(world.tokens(request)) == 2


@pytest.mark.parametrize("turns", range(5))
def test_an_abort_of_a_resumed_request_gives_every_block_back(turns: int) -> None:
    world = World()
    resumed = [Resumed(choice=i, output_ids=[70] * i) for i in range(3)]
    request = world.submit(PROMPT, num_choices=3, resumed=resumed, max_tokens=50, ignore_eos=True)
    for _ in range(turns):
        world.turn()
    world.abort(request)
    world.settle()
    world.check_idle()
