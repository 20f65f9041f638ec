"""Whole requests under every fault at once: real ranks, real pools, a network without mercy.

One decode rank and a prefill replica of two, each of which dies and comes back; clients that ask,
leave, and go on at the next rank when theirs died; writes that are late, held, stuck, lost, twice
or out of order. Whatever happens: KV that a scheduled request reads is its own, nothing lands in a
block without a writer, every request ends with its tokens or a reason, and no block is lost.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import event as hypothesis_event
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.launch import EngineConfig
from headrace.core.requests import FinishReason
from headrace.engine.replay import Script
from tests.support.engine_mortals import MortalWorld

TIMEOUT_S = 10.0
TOKENS = [65 + index * 7 % 26 for index in range(64)]
CONFIG = EngineConfig(block_size=16, max_step_tokens=40, session_timeout_s=TIMEOUT_S)
MAX_UNFINISHED = 5
# Turns that end any request once the weather is calm: far more than the longest ever takes.
CALM_TURNS = 400
ACTIONS = [
    *["ask"] * 5,
    *["turn"] * 10,
    *["time", "mend"] * 2,
    *["idle", "news", "delay", "leave"],
    *["hold", "stick", "lose", "fail"],
    *["kill prefill", "restart prefill", "kill decode"],
]


class RequestMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # A pool of each side that a few prompts fill: blocks run short, and sequences lose theirs.
        self.world = MortalWorld(
            num_blocks=14, prefill_blocks=8, config=CONFIG, scripts=[Script(tokens=TOKENS)]
        )
        self.script = self.world.network.script
        self.script.is_reordered = True
        self.script.duplicate = 0.3

    @rule(action=st.sampled_from(ACTIONS), number=st.integers(0, 9999))
    def step(self, action: str, number: int) -> None:
        """Do one of ``ACTIONS``: a single rule, so that their mix is ours and not the search's."""
        world = self.world
        match action:
            case "ask":
                self.ask(number)
            case "turn":
                for _ in range(1 + number % 4):
                    world.turn()
            case "idle":
                world.turn(prefill=False)
            case "time":
                world.turn(seconds=1.0 if number % 4 else TIMEOUT_S + 1)
            case "mend":
                self.mend()
            case "news":
                world.tell_prefill()
            case "delay":
                self.script.delay_pumps, self.script.ring_delay_pumps = number % 3, number % 5
            case "leave":
                for request_id in world.unfinished()[number % 3 :][:1]:
                    world.leave(request_id)
            case "kill prefill":
                world.kill_prefill(number % 2)
            case "restart prefill":
                world.restart_prefill()
            case "kill decode":
                world.kill_decode()
            case _:
                self.faults(action).add(number % 2)

    def ask(self, number: int) -> None:
        """Ask for a prompt of one of two families, so that many begin alike."""
        if len(self.world.unfinished()) >= MAX_UNFINISHED:
            return
        draw = random.Random(number)
        num_tokens, num_common = 1 + number % 140, draw.choice([0, 16, 33, 64])
        common = random.Random(number % 2).choices(range(250), k=num_common)
        prompt = (common + draw.choices(range(250), k=num_tokens))[:num_tokens]
        self.world.ask(prompt, max_tokens=1 + draw.randrange(24))

    def faults(self, fault: str) -> set[int]:
        return {
            "hold": self.script.held_ranks,
            "stick": self.script.stuck_ranks,
            "lose": self.script.losing_ranks,
            "fail": self.script.failing_ranks,
        }[fault]

    def mend(self) -> None:
        for fault in ("hold", "stick", "lose", "fail"):
            self.faults(fault).clear()
        self.script.delay_pumps = self.script.ring_delay_pumps = 0

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        self.world.pool.check_invariants()
        if self.world.is_prefill_up:
            self.world.prefill_pool.check_invariants()

    @invariant()
    def clients_have_the_tokens_of_their_script_and_no_others(self) -> None:
        for one in self.world.asked.values():
            assert one.output_ids == TOKENS[: len(one.output_ids)]
            if one.finish_reason is FinishReason.LENGTH:
                assert len(one.output_ids) == one.max_tokens
            elif one.finish_reason is not None:
                assert one.finish_reason is FinishReason.ERROR
                assert "prefill" in one.error

    def teardown(self) -> None:
        """Calm weather: every request ends, and both sides are as they were at the start."""
        self.mend()
        self.world.restart_prefill()
        self.world.tell_prefill()
        for _ in range(CALM_TURNS):
            self.world.turn(seconds=0.5)
            if not self.world.unfinished() and self.is_idle():
                break
        assert self.world.unfinished() == []
        self.clients_have_the_tokens_of_their_script_and_no_others()
        self.world.check_idle()
        for one in self.world.asked.values():
            hypothesis_event("left" if one.is_aborted else str(one.finish_reason))
        for engine in (self.world.transfer, *(one.transfer for one in self.world.prefill)):
            engine.close()

    def is_idle(self) -> bool:
        world = self.world
        return world.pool.is_idle and world.prefill_pool.is_idle and not world.rank.has_work


TestRequestMachine = RequestMachine.TestCase
TestRequestMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestLongHistories(RequestMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(
        max_examples=1000, stateful_step_count=100, deadline=None, derandomize=False
    )
