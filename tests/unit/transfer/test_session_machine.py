"""Whole transfers under every fault at once, against a dictionary model of the blocks.

Two prefill ranks, one decode rank, and a fake network that delays, holds, loses, repeats and
reorders; ranks fail, die and come back; requests are cancelled. Whatever happens: a completed
session has the right bytes, a free block is never written, and every session ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import event as hypothesis_event
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.messages import (
    CancelSession,
    Message,
    PrefillRequest,
    SessionFailed,
    SessionQuiet,
)
from headrace.transfer.engine import TransferEngine
from headrace.transfer.owners import expected_bytes_by_source
from headrace.transfer.sender import SendSessions
from headrace.transfer.session import ReceiveSessions
from headrace.transfer.session_state import Complete, Failed, Quarantined, Quiet, SessionState
from tests.support.transfer_layouts import TruthfulKv, make_schema, split_layouts
from tests.support.transfer_world import FakeWorld, make_engine

# Layers of equal bytes, so that a write counted twice could stand for one that is missing.
SCHEMAS = [make_schema(2, 3, "float32"), make_schema(2, 6, "float16")]
SOURCES = split_layouts(2, schemas=SCHEMAS, num_blocks=24, block_size=4)
(TARGET,) = split_layouts(1, schemas=SCHEMAS, num_blocks=7, block_size=8)
TIMEOUT_S = 10.0
FREE = 0xEE
RANKS = (0, 1)
ACTIONS = [
    *["open"] * 4,
    *["compute"] * 6,
    *["pump"] * 6,
    *["finish", "time", "mend"] * 2,
    *["cancel", "stick", "die", "hold", "lose", "fail"],
]


@dataclass
class Prefiller:
    """One prefill rank in one generation."""

    engine: TransferEngine
    senders: SendSessions
    data: np.ndarray
    generation: int
    computed: dict[str, int] = field(default_factory=dict)


@dataclass
class Model:
    """What is true of a session whatever happens."""

    truth: TruthfulKv
    start: int
    blocks: list[int]
    source_blocks: list[int]
    is_complete: bool = False
    is_quarantined: bool = False


class TransferMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = FakeWorld()
        self.network = self.world.network
        self.decoder = make_engine(self.world, "decode.0")
        self.region, self.descriptor = self.decoder.allocate(TARGET)
        self.landed = np.frombuffer(self.region.buffer, np.uint8)
        self.landed[:] = FREE
        self.network.script.is_reordered = True
        self.network.script.duplicate = 0.3
        self.sessions = ReceiveSessions(self.decoder)
        self.now_s = 0.0
        self.generations = 0
        self.models: dict[str, Model] = {}
        self.free = list(range(TARGET.num_blocks))
        self.opened = 0
        self.mail: deque[tuple[int, Message]] = deque()
        self.prefillers = {rank: self.start_rank(rank) for rank in RANKS}

    def start_rank(self, rank: int) -> Prefiller:
        self.generations += 1
        engine = make_engine(self.world, f"prefill.{rank}", rank=rank, generation=self.generations)
        data = np.zeros(SOURCES[rank].num_bytes, np.uint8)
        senders = SendSessions(
            engine,
            region=engine.register(memoryview(data)),
            sources=SOURCES,
            rank=rank,
            generation=self.generations,
            lead_address="lead",
        )
        return Prefiller(engine, senders, data, self.generations)

    @rule(action=st.sampled_from(ACTIONS), number=st.integers(0, 999))
    def step(self, action: str, number: int) -> None:
        """Do one of ``ACTIONS``: a single rule, so that their mix is ours and not the search's."""
        match action:
            case "open":
                self.open_session(2 + number % 21, number % 22, number)
            case "compute":
                which = [RANKS, RANKS, (0,), (1,)][number % 4]
                self.compute_chunk(which, [30, 8, 3][number % 3])
            case "pump":
                self.pump_and_run(1 + number % 3)
            case "finish":
                self.finish_request()
            case "time":
                self.let_time_pass(0.5 if number % 4 else 6.0)
            case "mend":
                self.mend_ranks()
            case _:
                self.trouble(action, number % 4)

    def open_session(self, num_tokens: int, skip: int, seed: int) -> None:
        need = -(-num_tokens // TARGET.block_size)
        if need > len(self.free) or len(self.models) >= 4:
            return
        session_id, start = f"s{self.opened}", skip % (num_tokens - 1)
        slot = self.opened % 4
        self.opened += 1
        blocks = [self.free.pop(seed % len(self.free)) for _ in range(need)]
        model = Model(
            TruthfulKv(SCHEMAS, num_tokens, seed=self.opened),
            start,
            blocks,
            [slot * 6 + n for n in range(6)],
        )
        self.models[session_id] = model
        imm = self.decoder.next_imm()
        self.sessions.open(
            session_id,
            imm=imm,
            replica="prefill",
            generations={rank: one.generation for rank, one in self.prefillers.items()},
            expected_bytes=expected_bytes_by_source(
                SOURCES, TARGET, start=start, stop=num_tokens - 1, seed=imm
            ),
            now_s=self.now_s,
            timeout_s=TIMEOUT_S,
        )
        request = PrefillRequest(
            session_id=session_id,
            imm=imm,
            reply_to="decoder",
            token_ids=[0] * num_tokens,
            start=start,
            block_ids=blocks,
            target=self.descriptor,
        )
        self.mail += [(rank, request) for rank in RANKS]

    def compute_chunk(self, which: tuple[int, ...], chunk: int) -> None:
        self.deliver_mail()
        for rank in which:
            self.compute_on(rank, chunk)

    def compute_on(self, rank: int, chunk: int) -> None:
        one = self.prefillers[rank]
        for session_id, done in list(one.computed.items()):
            model = self.models.get(session_id)
            if model is None or one.senders.is_drained(session_id):
                del one.computed[session_id]
                continue
            stop = min(done + chunk, model.truth.num_tokens)
            model.truth.fill(one.data, SOURCES[rank], model.source_blocks, range(done, stop))
            for layer in range(len(SCHEMAS)):
                one.senders.submit(session_id, layer=layer, start=done, stop=stop)
            one.computed[session_id] = stop

    def deliver_mail(self) -> None:
        for _ in range(len(self.mail)):
            rank, message = self.mail.popleft()
            one = self.prefillers[rank]
            if isinstance(message, PrefillRequest):
                model = self.models.get(message.session_id)
                blocks = model.source_blocks if model else list(range(6))
                if one.senders.open(message, block_ids=blocks):
                    one.computed[message.session_id] = 0
            elif isinstance(message, CancelSession):
                one.senders.cancel(message)

    def pump_and_run(self, number: int) -> None:
        for _ in range(number):
            self.network.pump()
        self.run_ranks()

    def run_ranks(self) -> None:
        for one in self.prefillers.values():
            one.engine.poll()
            for outgoing in one.senders.poll():
                message = outgoing.message
                if isinstance(message, SessionQuiet):
                    self.sessions.on_quiet(message, now_s=self.now_s)
                elif isinstance(message, SessionFailed):
                    self.sessions.on_failed(message, now_s=self.now_s)
        for immediate in self.decoder.poll().immediates:
            self.sessions.on_immediate(immediate, now_s=self.now_s)
        self.take_events()

    def trouble(self, kind: str, which: int) -> None:
        if kind == "cancel":
            self.cancel(which)
        elif kind == "die":
            self.die_and_come_back(which % 2)
        else:
            self.faults(kind).add(which % 2)

    def cancel(self, which: int) -> None:
        waiting = [key for key, one in self.models.items() if not one.is_complete]
        if waiting:
            session_id = waiting[which % len(waiting)]
            self.sessions.cancel(session_id, now_s=self.now_s)
            self.ask_quiet(session_id)
            self.take_events()

    def finish_request(self) -> None:
        for session_id in [key for key, one in self.models.items() if one.is_complete][:1]:
            self.release(session_id)

    def die_and_come_back(self, rank: int) -> None:
        dead = self.prefillers[rank]
        self.network.forget_writer(rank, generation=dead.generation)
        dead.engine.close()
        self.prefillers[rank] = self.start_rank(rank)
        self.sessions.on_generation_dead(
            "prefill", rank=rank, generation=dead.generation, now_s=self.now_s
        )
        self.take_events()

    def mend_ranks(self) -> None:
        for fault in ("hold", "stick", "lose", "fail"):
            self.faults(fault).clear()

    def faults(self, fault: str) -> set[int]:
        script = self.network.script
        return {
            "hold": script.held_ranks,
            "stick": script.stuck_ranks,
            "lose": script.losing_ranks,
            "fail": script.failing_ranks,
        }[fault]

    def let_time_pass(self, seconds: float) -> None:
        self.now_s += seconds
        self.sessions.tick(self.now_s)
        self.take_events()

    def ask_quiet(self, session_id: str) -> None:
        message = CancelSession(session_id=session_id, reply_to="decoder")
        self.mail += [(rank, message) for rank in RANKS]

    def take_events(self) -> None:
        for event in self.sessions.take_events():
            model = self.models[event.session_id]
            hypothesis_event(type(event).__name__)
            if isinstance(event, Complete):
                model.is_complete = True
            elif isinstance(event, Failed):
                assert f"prefill.{event.rank}" in event.reason
                self.ask_quiet(event.session_id)
            elif isinstance(event, Quarantined):
                model.is_quarantined = True
            elif isinstance(event, Quiet):
                self.release(event.session_id)

    def release(self, session_id: str) -> None:
        model = self.models.pop(session_id)
        for block in model.blocks:
            BlockView(self.landed, block).fill(FREE)
        self.free += model.blocks

    @invariant()
    def completed_sessions_hold_the_right_bytes(self) -> None:
        for model in self.models.values():
            if model.is_complete:
                want = np.full_like(self.landed, FREE)
                positions = range(model.start, model.truth.num_tokens - 1)
                model.truth.fill(want, TARGET, model.blocks, positions)
                for block in model.blocks:
                    assert BlockView(self.landed, block) == BlockView(want, block)

    @invariant()
    def free_blocks_are_never_written(self) -> None:
        for block in self.free:
            assert BlockView(self.landed, block).is_all(FREE)

    @invariant()
    def every_block_is_free_or_held_by_one_session(self) -> None:
        held = [block for model in self.models.values() for block in model.blocks]
        assert sorted(held + self.free) == list(range(TARGET.num_blocks))

    @invariant()
    def no_session_outlives_its_deadline(self) -> None:
        for session_id in self.models:
            session = self.sessions.get(session_id)
            if session is not None and session.state is not SessionState.QUARANTINE:
                assert session.deadline_s > self.now_s

    def teardown(self) -> None:
        """Calm weather and time: every session ends, and no block is lost."""
        self.mend_ranks()
        for _ in range(3):
            self.network.settle()
            self.run_ranks()
            self.deliver_mail()
            self.let_time_pass(TIMEOUT_S)
        while any(one.is_complete for one in self.models.values()):
            self.finish_request()
        # Every rank could be heard, so that nothing is left, not even in quarantine.
        assert not self.models
        assert len(self.sessions) == 0
        assert sorted(self.free) == list(range(TARGET.num_blocks))
        self.free_blocks_are_never_written()
        for engine in (self.decoder, *(one.engine for one in self.prefillers.values())):
            engine.close()


class BlockView:
    """All bytes of one block, over rows and layers."""

    def __init__(self, region: np.ndarray, block: int) -> None:
        self.parts = []
        for layer in range(len(TARGET.layers)):
            for kv in (0, 1):
                for head in TARGET.heads:
                    at = TARGET.atom_offset(layer, kv, head, block)
                    self.parts.append(region[at : at + TARGET.atom_bytes(layer)])

    def fill(self, value: int) -> None:
        for part in self.parts:
            part[:] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockView) and all(
            bool((a == b).all()) for a, b in zip(self.parts, other.parts, strict=True)
        )

    def is_all(self, value: int) -> bool:
        return all(bool((part == value).all()) for part in self.parts)


TestTransferMachine = TransferMachine.TestCase
TestTransferMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
