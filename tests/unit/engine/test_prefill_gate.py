"""Nothing that a peer can say crashes a prefill rank, leaks a block or is written past a grant."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.launch import EngineConfig
from headrace.core.layouts import KvSchema
from headrace.core.messages import (
    CancelSession,
    Message,
    PrefillRequest,
    SessionFailed,
    Shutdown,
)
from headrace.core.requests import FinishReason
from headrace.engine.loops import PrefillLoop
from headrace.engine.orders import Orders
from headrace.engine.prefill import PrefillWorker
from headrace.engine.prefill_gate import MAX_REMEMBERED
from tests.support.engine_specs import Inbox
from tests.support.engine_world import World
from tests.support.hostile import plain, received, spoilt

PROMPT = list(range(40))
FREE = 0xEE
CONFIG = EngineConfig(block_size=16, max_step_tokens=24)


class Prefill:
    """The lead of a replica of one rank behind its real loop, and a decoder's region."""

    def __init__(self) -> None:
        self.world = World(tp=1, prefill_blocks=8, num_blocks=8, config=CONFIG)
        self.control = Inbox()
        rank = self.world.prefill[0]
        self.loop = PrefillLoop(
            worker=rank.worker,
            lead=self.world.lead,
            orders=Orders(generation=1),
            control=self.control,  # type: ignore[arg-type]
            engine=rank.transfer,
        )
        self.landed = np.frombuffer(self.world.region.buffer, np.uint8)
        self.landed[:] = FREE

    def take(self, *messages: Message | None, turns: int = 12) -> None:
        self.control.inbox += [one for one in messages if one is not None]
        for _ in range(turns):
            self.loop._turn()
            self.world.network.pump()
            # What a rank says to its own replica goes round.
            self.control.inbox += self.world.mail.pop("prefill0", [])

    def answers(self, session_id: str) -> list[Message]:
        return [
            message
            for _, message in self.world.sent
            if getattr(message, "session_id", "") == session_id
        ]

    def check_serves(self) -> None:
        """Assert that an honest request is served, and that nothing is held afterwards."""
        honest = self.request(session_id="honest", imm=77)
        self.take(honest)
        assert (self.landed != FREE).any()
        assert not any(isinstance(one, SessionFailed) for one in self.answers("honest"))
        self.world.prefill_pool.check_invariants()
        assert self.world.prefill_pool.is_idle
        assert self.world.lead is not None
        assert not self.world.lead.has_work

    def request(self, **changes: Any) -> PrefillRequest:
        """Return the request that the world's decode rank would make."""
        receiving = self.world.receiving
        assert receiving is not None
        request = PrefillRequest(
            session_id="s",
            imm=1,
            reply_to="decode",
            token_ids=PROMPT,
            start=0,
            block_ids=[5, 1, 3],
            target=receiving._region,
        )
        return msgspec.structs.replace(request, **changes)


def block_ids_written(prefill: Prefill) -> set[int]:
    layout = prefill.world.layout(8)
    changed = np.flatnonzero(prefill.landed != FREE)
    return {int(one) for one in np.unique(changed // layout.atom_bytes(0) % layout.num_blocks)}


TEMPLATE = Prefill().request()
MESSAGES = st.one_of(plain(kind) for kind in Message.__subclasses__() if kind is not Shutdown)


@given(st.lists(st.one_of(spoilt(TEMPLATE), MESSAGES), min_size=1, max_size=4))
@settings(max_examples=400)
def test_no_message_crashes_a_prefill_rank_or_costs_it_a_block(messages: list[Any]) -> None:
    prefill = Prefill()
    decoded = [received(data) for data in messages]
    prefill.take(*decoded)
    touched = block_ids_written(prefill)
    named = {one for each in decoded if isinstance(each, PrefillRequest) for one in each.block_ids}
    assert touched <= named
    for message in decoded:
        if isinstance(message, PrefillRequest):
            prefill.take(CancelSession(session_id=message.session_id, reply_to="decode"))
    prefill.landed[:] = FREE
    if not prefill.loop._orders.is_leaving:
        prefill.check_serves()


def spoil_target(**changes: Any) -> dict[str, Any]:
    return {"target": msgspec.structs.replace(TEMPLATE.target, **changes)}


def spoil_layout(**changes: Any) -> dict[str, Any]:
    layout = msgspec.structs.replace(TEMPLATE.target.layout, **changes)
    return spoil_target(layout=layout, num_bytes=layout.num_bytes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": []}, "a prompt of 0 tokens"),
        ({"token_ids": [1]}, "a prompt of 1 tokens"),
        ({"token_ids": [1, -1, 3]}, "token -1: expected ids from 0 to 260"),
        ({"token_ids": [1, 261, 3]}, "token 261: expected ids from 0 to 260"),
        ({"token_ids": [1] * 130}, "does not fit the prefill replica's KV cache of 128"),
        ({"token_ids": [1] * 5000}, "does not fit the prefill replica's context of 4096"),
        ({"start": -1}, "start -1: expected 0 to 38"),
        ({"start": 39}, "start 39: expected 0 to 38"),
        ({"block_ids": []}, "0 destination blocks of 16 tokens"),
        ({"block_ids": [5, 1]}, "39 need 3 blocks"),
        ({"block_ids": [5, 1, 8]}, "destination block 8: the pool has blocks 0 to 7"),
        ({"block_ids": [5, 1, -1]}, "destination block -1"),
        ({"block_ids": [5, 1, 2**64 - 1]}, f"destination block {2**64 - 1}"),
        ({"block_ids": [5, 1, 5]}, "destination block 5 is named twice"),
        ({"imm": -1}, "immediate -1"),
        (spoil_target(num_bytes=5), "region decode/0 of 5 bytes: its layout has 16384"),
        (spoil_target(num_bytes=-1), "region decode/0 of -1 bytes"),
        (spoil_target(generation=-1), "generation -1"),
        (spoil_layout(num_blocks=2**60), "bytes: its layout has"),
        (spoil_layout(layers=TEMPLATE.target.layout.layers[:1]), "2 layers, destination rank 0"),
        (
            spoil_target(
                layout=msgspec.structs.replace(
                    TEMPLATE.target.layout,
                    layers=(KvSchema(num_kv_heads=4, head_dim=2, dtype="int4"),) * 2,
                )
            ),
            "has dtype float32, destination rank 0 has int4",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    prefill = Prefill()
    prefill.take(prefill.request(**changes))
    refusals = [one for one in prefill.answers("s") if isinstance(one, SessionFailed)]
    assert [one.is_final for one in refusals] == [True]
    assert reason in refusals[0].reason
    assert block_ids_written(prefill) == set()
    prefill.check_serves()


def test_a_region_of_another_transport_fails_its_session_only() -> None:
    prefill = Prefill()
    prefill.take(prefill.request(**spoil_target(transport="tcp", name="x")))
    (refusal,) = [one for one in prefill.answers("s") if isinstance(one, SessionFailed)]
    assert "expected a fake one" in refusal.reason
    prefill.check_serves()


@pytest.mark.parametrize("turns", [0, 1, 2, 12])
def test_a_request_that_is_repeated_is_served_once(turns: int) -> None:
    prefill = Prefill()
    prefill.take(prefill.request(), turns=turns)
    prefill.take(prefill.request())
    prefill.landed[:] = FREE
    prefill.take(prefill.request())
    assert block_ids_written(prefill) == set()
    prefill.check_serves()


def test_a_request_that_comes_after_its_cancel_is_not_served() -> None:
    prefill = Prefill()
    prefill.take(CancelSession(session_id="s", reply_to="decode"))
    prefill.take(prefill.request())
    assert block_ids_written(prefill) == set()
    prefill.check_serves()


def test_what_is_remembered_of_sessions_is_bounded() -> None:
    prefill = Prefill()
    assert prefill.world.lead is not None
    gate = prefill.world.lead._gate
    for number in range(MAX_REMEMBERED + 1):
        gate.remember(f"s{number}")
    assert gate.is_new("s0")
    assert not gate.is_new("s1")


class Insistent(World):
    """A world whose follower gets every order three times, through its real loop."""

    def _take_follower(self, worker: PrefillWorker, message: Message) -> None:
        control = Inbox()
        control.inbox += [message] * 3
        PrefillLoop(
            worker=worker,
            lead=None,
            orders=Orders(generation=1),
            control=control,  # type: ignore[arg-type]
            engine=self.prefill[1].transfer,
        )._turn()


def test_orders_that_are_repeated_are_followed_once() -> None:
    world = Insistent(tp=2, config=CONFIG)
    request_id = world.submit(PROMPT)
    for _ in range(40):
        world.turn()
    assert world.last(request_id).finish_reason is FinishReason.LENGTH
    assert [rank.worker.steps for rank in world.prefill] == [2, 2]
    world.check_idle()
