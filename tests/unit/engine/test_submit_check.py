"""Nothing that can be sent to a decode rank crashes it or costs it a block."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.comm.group import SingleGroup
from headrace.core.errors import RequestError
from headrace.core.launch import EngineConfig
from headrace.core.messages import (
    CancelSession,
    Heartbeat,
    Message,
    Outputs,
    PrefillRequest,
    RankInfo,
    Resumed,
    SessionDone,
    SessionFailed,
    SessionQuiet,
    SessionStarted,
    Shutdown,
    Submit,
    Topology,
)
from headrace.core.requests import FinishReason, SamplingParams
from headrace.engine.lockstep import Lockstep
from headrace.engine.loops import DecodeLoop
from headrace.engine.orders import Orders
from headrace.engine.submit_check import check_submit
from tests.support.engine_specs import Inbox
from tests.support.engine_world import World
from tests.support.hostile import plain, received, spoilt

CONFIG = EngineConfig(block_size=16, session_timeout_s=10.0)
HONEST = Submit(
    request_id="r",
    reply_to="edge",
    prompt_ids=list(range(40)),
    params=SamplingParams(
        max_tokens=4, temperature=0.7, logit_bias={5: 1.0}, stop=("x",), stop_token_ids=(7,)
    ),
    prefill_replica="prefill",
    resumed=[Resumed(choice=0, output_ids=[65])],
)
WORDS = [
    SessionStarted(session_id="decode.1-0", cached_tokens=3, queue_s=0.1),
    SessionDone(session_id="decode.1-0", compute_s=0.1),
    SessionQuiet(session_id="decode.1-0", rank=0, generation=1),
    SessionFailed(session_id="decode.1-0", rank=0, generation=1, reason="x"),
    Heartbeat(
        replica="prefill",
        info=RankInfo(rank=0, generation=1, address="prefill0"),
        progress=3,
        has_work=True,
        counters={"headrace_step": 1.0, "headrace_layer": 2.0},
    ),
]


class Decode:
    """A decode rank behind its real loop, and a prefill replica that serves it."""

    def __init__(self) -> None:
        self.world = world = World(tp=2, num_blocks=8, prefill_blocks=8, config=CONFIG)
        self.control = Inbox()
        self.loop = DecodeLoop(
            rank=world.rank,
            orders=Orders(generation=1),
            control=self.control,  # type: ignore[arg-type]
            lockstep=Lockstep(SingleGroup(), lambda step: None),
            receiving=world.receiving,
            engine=world.transfer,
            pool=world.pool,
            clock=world.clock,
        )

    def take(self, *messages: Message | None, turns: int = 12, seconds: float = 0.0) -> None:
        self.control.inbox += [one for one in messages if one is not None]
        for _ in range(turns):
            self.world.clock.time_s += seconds
            assert self.world.lead is not None
            for address in [one for one in self.world.mail if one.startswith("prefill")]:
                # A strange ``reply_to`` sends outputs there, which a prefill rank's loop ignores.
                mail = self.world.mail[address]
                self.world.mail[address] = [one for one in mail if not isinstance(one, Outputs)]
            self.world._turn_prefill(self.world.lead)
            self.world.pump()
            self.control.inbox += self.world.mail.pop("decode", [])
            self.loop._turn()

    def ended(self, request_id: str) -> list[FinishReason]:
        return [
            output.finish_reason
            for _, message in self.world.sent
            if isinstance(message, Outputs)
            for output in message.outputs
            if output.request_id == request_id and output.finish_reason is not None
        ]

    def check_serves(self) -> None:
        """Assert that an honest request ends well once all that is open has had its time."""
        self.take(turns=60, seconds=2.0)
        # A topology may have said that the replica is dead, which holds for good.
        self.world.prefill_generation += 1
        self.world._make_prefill()
        self.world.announce()
        self.take(msgspec.structs.replace(HONEST, request_id="honest"), turns=40)
        assert self.ended("honest") == [FinishReason.LENGTH]
        self.world.pool.check_invariants()


MESSAGES = st.one_of(
    *(spoilt(word) for word in WORDS),
    *(plain(kind) for kind in Message.__subclasses__() if kind is not Shutdown),
)


@given(st.lists(st.one_of(spoilt(HONEST), MESSAGES), min_size=1, max_size=4))
@settings(max_examples=300)
def test_no_message_crashes_a_decode_rank_or_costs_it_a_block(messages: list[Any]) -> None:
    decode = Decode()
    decode.take(HONEST, turns=1)
    decode.take(*(received(data) for data in messages))
    if not decode.loop._orders.is_leaving:
        decode.check_serves()
        decode.take(turns=20, seconds=2.0)
        assert decode.world.pool.is_idle


def spoil(**changes: Any) -> dict[str, Any]:
    return {"params": msgspec.structs.replace(HONEST.params, **changes)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_ids": []}, "a prompt of 0 tokens"),
        ({"prompt_ids": [3, 261]}, "prompt: token 261: expected ids from 0 to 260"),
        ({"prompt_ids": [-1]}, "prompt: token -1"),
        ({"resumed": [Resumed(choice=0, output_ids=[999])]}, "resumed: token 999"),
        ({"resumed": [Resumed(choice=-1, output_ids=[])]}, r"resumed choices \[-1\]"),
        ({"resumed": [Resumed(choice=1, output_ids=[])] * 2}, r"resumed choices \[1, 1\]"),
        ({"num_choices": 0}, "n=0: expected 1"),
        ({"num_choices": 2**40}, "n=1099511627776"),
        ({"deadline_s": math.nan}, "deadline_s=nan"),
        ({"deadline_s": 0.0}, "deadline_s=0.0"),
        (spoil(max_tokens=0), "max_tokens=0"),
        (spoil(temperature=math.nan), "expected finite numbers"),
        (spoil(temperature=-1.0), "temperature=-1.0: expected 0.0 or more"),
        (spoil(top_k=-1), "top_k=-1"),
        (spoil(top_k=2**40), f"top_k={2**40}"),
        (spoil(repetition_penalty=0.0), "repetition_penalty=0.0"),
        (spoil(logit_bias={261: 1.0}), "logit_bias: token 261"),
        (spoil(logit_bias={1: math.inf}), "expected finite numbers"),
        (spoil(stop_token_ids=(-2,)), "stop_token_ids: token -2"),
        (spoil(top_logprobs=21), "top_logprobs=21"),
        (spoil(seed=-1), "seed=-1"),
    ],
)
def test_what_cannot_be_computed_with_is_refused_by_name(
    changes: dict[str, Any], reason: str
) -> None:
    submit = msgspec.structs.replace(HONEST, **changes)
    with pytest.raises(RequestError, match=reason):
        check_submit(submit, vocab_size=261)
    decode = Decode()
    decode.take(submit)
    assert set(decode.ended("r")) <= {FinishReason.ERROR}
    assert decode.world.pool.is_idle


def test_an_honest_request_passes() -> None:
    check_submit(HONEST, vocab_size=261)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_request_that_is_repeated_is_served_once(turns: int) -> None:
    decode = Decode()
    decode.take(HONEST, turns=turns)
    decode.take(HONEST, turns=40)
    assert decode.ended("r") == [FinishReason.LENGTH]
    assert decode.world.pool.is_idle


def test_times_that_are_none_do_not_reach_the_ledger() -> None:
    decode = Decode()
    decode.take(HONEST, turns=1)
    for number in (math.nan, math.inf, -5.0):
        decode.take(
            SessionStarted(session_id="decode.1-0", cached_tokens=10**9, queue_s=number),
            SessionDone(session_id="decode.1-0", compute_s=number),
            turns=1,
        )
    decode.take(turns=40)
    (ledger,) = [
        output.ledger
        for _, message in decode.world.sent
        if isinstance(message, Outputs)
        for output in message.outputs
        if output.finish_reason is not None
    ]
    assert ledger is not None
    assert all(math.isfinite(getattr(ledger, name)) for name in ("queue_s", "prefill_s"))
    assert 0 <= ledger.prefiller_cached_tokens <= 40


def test_a_topology_without_ranks_is_nobody_to_ask() -> None:
    decode = Decode()
    assert decode.world.receiving is not None
    decode.world.announce(ranks=[0])
    decode.take(HONEST, turns=40)
    assert decode.ended("r") == [FinishReason.LENGTH]
    asked = [one for _, one in decode.world.sent if isinstance(one, PrefillRequest)]
    assert asked == []
    decode.take(Topology(replicas=[]), CancelSession(session_id="x", reply_to="y"))
    decode.check_serves()
