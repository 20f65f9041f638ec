from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import (
    CancelSession,
    Message,
    PrefillRequest,
    RegionDescriptor,
    SendDone,
    SessionFailed,
    SessionQuiet,
)
from headrace.transfer.completion import Outcome
from headrace.transfer.engine import TransferEngine
from headrace.transfer.fake import FakeTransport
from headrace.transfer.owners import expected_bytes
from headrace.transfer.sender import MAX_ENDED, Outgoing, SendSessions
from tests.support.transfer_layouts import TruthfulKv, make_schema, split_layouts
from tests.support.transfer_world import FakeWorld, make_engine

SOURCE_BLOCKS, TARGET_BLOCKS = [4, 2, 7], [3, 9]
NUM_TOKENS = 40


class Lab:
    """One prefill rank of two, and a decode rank with blocks of another size."""

    def __init__(self) -> None:
        self.network = (world := FakeWorld()).network
        self.sources = split_layouts(2)
        (self.layout,) = split_layouts(1, block_size=32)
        self.receiver = make_engine(world, "decode.0")
        self.region, self.target = self.receiver.allocate(self.layout)
        self.engine = make_engine(world, "prefill.1", rank=1, generation=6)
        self.truth = TruthfulKv(self.layout.layers, NUM_TOKENS)
        data = np.zeros(self.sources[1].num_bytes, np.uint8)
        self.truth.fill(data, self.sources[1], SOURCE_BLOCKS, range(NUM_TOKENS))
        self.senders = SendSessions(
            self.engine,
            region=self.engine.register(memoryview(data)),
            sources=self.sources,
            rank=1,
            generation=6,
            lead_address="lead",
        )

    def request(self, session_id: str = "s", *, start: int = 0, imm: int = 0) -> PrefillRequest:
        return PrefillRequest(
            session_id=session_id,
            imm=imm,
            reply_to="decoder",
            token_ids=list(range(NUM_TOKENS)),
            start=start,
            block_ids=TARGET_BLOCKS,
            target=self.target,
        )

    def open(self, session_id: str = "s", *, start: int = 0, imm: int = 0) -> bool:
        request = self.request(session_id, start=start, imm=imm)
        return self.senders.open(request, block_ids=SOURCE_BLOCKS)

    def submit(self, start: int, stop: int, session_id: str = "s") -> None:
        for layer in range(2):
            self.senders.submit(session_id, layer=layer, start=start, stop=stop)

    def cancel(self, session_id: str = "s") -> None:
        self.senders.cancel(CancelSession(session_id=session_id, reply_to="decoder"))

    def settle(self) -> list[Outgoing]:
        self.network.settle()
        return self.senders.poll()

    def landed(self) -> np.ndarray:
        return np.frombuffer(self.region.buffer, np.uint8)

    def wanted(self, start: int, stop: int) -> np.ndarray:
        """What rank 1's heads, 2 and 3, should look like at the decoder."""
        whole = np.zeros(self.layout.num_bytes, np.uint8)
        self.truth.fill(whole, self.layout, TARGET_BLOCKS, range(start, stop))
        rows = whole.reshape(2, 2, 4, -1)
        rows[:, :, :2] = 0
        return rows.ravel()


DONE = Outgoing("lead", SendDone(session_id="s", rank=1))
QUIET = Outgoing("decoder", SessionQuiet(session_id="s", rank=1, generation=6))


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.engine.close()
    lab.receiver.close()


def test_chunks_of_any_cut_land_every_token_but_the_last(lab: Lab) -> None:
    assert lab.open()
    for start, stop in ((0, 5), (5, 33), (33, NUM_TOKENS)):
        lab.submit(start, stop)
    assert lab.settle() == [DONE]
    np.testing.assert_array_equal(lab.landed(), lab.wanted(0, NUM_TOKENS - 1))


def test_tokens_that_the_decoder_has_are_not_sent(lab: Lab) -> None:
    lab.open(start=17)
    lab.submit(0, 20)
    lab.submit(20, NUM_TOKENS)
    assert lab.settle() == [DONE]
    np.testing.assert_array_equal(lab.landed(), lab.wanted(17, NUM_TOKENS - 1))


def test_the_immediates_add_up_to_what_this_rank_owes(lab: Lab) -> None:
    lab.receiver.expect(0, 1 << 40)
    lab.open(start=3)
    lab.submit(0, NUM_TOKENS)
    lab.settle()
    sent = sum(one.num_bytes for one in lab.receiver.poll().immediates)
    assert sent == expected_bytes(lab.layout, start=3, stop=NUM_TOKENS - 1) // 2


def test_a_session_is_done_once_and_only_when_its_last_write_is(lab: Lab) -> None:
    lab.network.script.held_ranks.add(1)
    lab.open()
    lab.submit(0, NUM_TOKENS)
    assert lab.settle() == []
    assert not lab.senders.is_drained("s")
    lab.network.script.held_ranks.clear()
    assert lab.settle() == [DONE]
    assert lab.senders.is_drained("s")
    assert lab.settle() == []


def test_cancelling_stops_new_writes_and_says_quiet_once_after_pending_ones(lab: Lab) -> None:
    lab.open()
    lab.submit(0, 10)
    lab.cancel()
    lab.cancel()
    lab.submit(10, NUM_TOKENS)
    assert lab.network.num_posted() == 2
    assert lab.senders.poll() == []
    assert lab.settle() == [DONE, QUIET]
    assert lab.settle() == []
    assert not lab.landed().any()  # posted, but cancelled before they began


def test_a_cancel_that_comes_after_the_end_is_answered_at_once(lab: Lab) -> None:
    lab.open()
    lab.submit(0, NUM_TOKENS)
    assert lab.settle() == [DONE]
    lab.cancel()
    assert lab.settle() == [QUIET]


def test_a_cancel_that_comes_before_the_session_keeps_it_from_opening(lab: Lab) -> None:
    lab.cancel()
    assert lab.settle() == [QUIET]
    assert not lab.open()
    lab.submit(0, NUM_TOKENS)
    assert lab.network.num_posted() == 0
    assert len(lab.senders) == 0


def test_a_post_that_fails_is_told_with_its_reason_then_quiet(lab: Lab) -> None:
    lab.network.script.failing_ranks.add(1)
    lab.open()
    lab.submit(0, 10)
    failed = SessionFailed(session_id="s", rank=1, generation=6, reason="layer 0: post failed")
    assert lab.settle() == [Outgoing("decoder", failed), DONE, QUIET]
    lab.submit(10, NUM_TOKENS)
    assert lab.settle() == []


def test_a_step_that_fails_is_told_once(lab: Lab) -> None:
    lab.open()
    lab.senders.fail("s", "out of memory")
    lab.senders.fail("s", "again")
    lab.senders.fail("unknown", "x")
    kinds: list[type[Message]] = [type(one.message) for one in lab.settle()]
    assert kinds == [SessionFailed, SendDone, SessionQuiet]


def test_a_decoder_that_no_plan_leads_to_is_told_so(lab: Lab) -> None:
    (other,) = split_layouts(1, schemas=[make_schema(4, 8)] * 3, block_size=32)
    request = lab.request()
    wrong = type(request.target)(
        **{
            **{f: getattr(request.target, f) for f in request.target.__struct_fields__},
            "layout": other,
        }
    )
    request = PrefillRequest(
        **{**{f: getattr(request, f) for f in request.__struct_fields__}, "target": wrong}
    )
    assert not lab.senders.open(request, block_ids=SOURCE_BLOCKS)
    failed, *rest = lab.settle()
    assert isinstance(failed.message, SessionFailed)
    assert "has 2 layers, destination rank 0 has 3" in failed.message.reason
    assert rest == [DONE, QUIET]


def test_a_dead_decoder_is_told_nothing_but_the_lead_is(lab: Lab) -> None:
    lab.network.script.held_ranks.add(1)
    lab.open()
    lab.submit(0, 10)
    lab.senders.forget_peer("another decoder")
    assert not lab.settle()
    lab.senders.forget_peer("decoder")
    lab.network.script.held_ranks.clear()
    assert lab.settle() == [DONE]


def test_what_is_kept_of_a_decoder_goes_with_it_also_when_no_session_is_open(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[RegionDescriptor] = []
    monkeypatch.setattr(lab.engine, "forget", forgotten.append)
    lab.open()
    lab.submit(0, NUM_TOKENS)
    assert lab.settle() == [DONE]
    lab.senders.forget_peer("decoder")
    assert forgotten == [lab.target]
    lab.senders.forget_peer("decoder")
    assert forgotten == [lab.target]


def test_a_late_order_for_a_decoder_that_is_gone_drains_at_once_and_tells_only_the_lead(
    lab: Lab,
) -> None:
    lab.senders.forget_peer("decoder")
    assert not lab.open()
    lab.submit(0, NUM_TOKENS)
    lab.cancel("another")
    assert lab.settle() == [DONE]
    assert lab.senders.is_drained("s")
    assert not lab.landed().any()


def test_nothing_is_said_any_more_to_a_decoder_that_is_gone(lab: Lab) -> None:
    lab.open()
    lab.senders.fail("s", "a step failed")
    lab.senders.forget_peer("decoder")
    assert lab.settle() == [DONE]


def test_a_rank_whose_replica_sends_its_heads_is_done_at_once(lab: Lab) -> None:
    sources = [lab.sources[0], lab.sources[1], lab.sources[1]]
    done = []
    for rank in (1, 2):
        senders = SendSessions(
            lab.engine,
            region=lab.region,
            sources=sources,
            rank=rank,
            generation=6,
            lead_address="lead",
        )
        senders.open(lab.request(imm=1), block_ids=SOURCE_BLOCKS)
        done.append(len(senders.poll()))
    # Two heads, two replicas: which rank sends how many is the seed's choice, all of it accounted.
    assert done in ([0, 0], [0, 1], [1, 0])


class FencedEngine(TransferEngine):
    """An engine whose fences end when the test says so."""

    fence: Outcome | None = None

    def end_writes(self, target: RegionDescriptor, imm: int) -> Outcome:
        assert self.fence is None
        super().end_writes(target, imm)
        self.fence = Outcome()
        return self.fence


@pytest.fixture
def fenced(lab: Lab) -> FencedEngine:
    transport = FakeTransport(lab.network, name="fenced", rank=1, generation=6)
    engine = FencedEngine(transport, rank=1, generation=6)
    engine.open()
    lab.engine.close()
    lab.engine = lab.senders._engine = engine
    return engine


def test_a_session_is_done_when_its_fence_is(lab: Lab, fenced: FencedEngine) -> None:
    lab.open()
    lab.submit(0, 10)
    lab.settle()
    assert fenced.fence is None
    lab.submit(10, NUM_TOKENS)
    assert lab.settle() == []
    assert fenced.fence is not None
    assert lab.settle() == []
    assert not lab.senders.is_drained("s")
    fenced.fence.finish()
    assert lab.settle() == [DONE]


def test_a_cancelled_session_is_quiet_when_its_fence_is_whatever_it_says(
    lab: Lab, fenced: FencedEngine
) -> None:
    lab.open()
    lab.submit(0, 10)
    lab.cancel()
    assert lab.settle() == []
    assert fenced.fence is not None
    fenced.fence.finish("the connection was lost")
    assert lab.settle() == [DONE, QUIET]


def test_what_the_fence_found_out_fails_the_session(lab: Lab, fenced: FencedEngine) -> None:
    lab.open()
    lab.submit(0, NUM_TOKENS)
    lab.settle()
    assert fenced.fence is not None
    fenced.fence.finish("the connection was lost")
    failed = SessionFailed(session_id="s", rank=1, generation=6, reason="the connection was lost")
    assert lab.settle() == [Outgoing("decoder", failed), DONE, QUIET]


def test_opening_twice_is_a_mistake(lab: Lab) -> None:
    lab.open()
    with pytest.raises(TransferError, match="open already"):
        lab.open()


def test_what_is_remembered_of_ended_sessions_is_bounded(lab: Lab) -> None:
    for n in range(MAX_ENDED + 3):
        lab.cancel(f"s{n}")
    assert len(lab.senders._ended) == MAX_ENDED
    assert not lab.open(f"s{MAX_ENDED}")


def test_a_write_that_the_engine_refuses_fails_the_session(lab: Lab) -> None:
    smaller: CacheLayout = split_layouts(2, num_blocks=8)[1]
    lab.senders = SendSessions(
        lab.engine,
        region=lab.engine.register(memoryview(bytes(smaller.num_bytes // 4))),
        sources=lab.sources,
        rank=1,
        generation=6,
        lead_address="lead",
    )
    lab.open()
    lab.submit(0, NUM_TOKENS)
    failed = lab.settle()[0].message
    assert isinstance(failed, SessionFailed)
    assert "the region has bytes" in failed.reason
