"""Chaos over the fake network, on a manual clock: each fault alone, and what it must not break."""

from __future__ import annotations

import select

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.chaos import WriteFaults
from headrace.core.errors import TransferError
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Completion
from headrace.transfer.chaos import REORDER_S, ChaosTransport
from headrace.transfer.engine import TransferEngine
from headrace.transfer.fake import FakeTransport
from headrace.transfer.fake_network import FakeNetwork
from tests.support.engine_parts import ManualClock
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import fragments


class Pair:
    """A sender and a receiver that both suffer the same faults."""

    def __init__(self, *, num_ranks: int = 1, rank: int = 0, **faults: float) -> None:
        self.faults = WriteFaults(**faults)  # type: ignore[arg-type]
        self.network = FakeNetwork()
        self.clock = ManualClock()
        self.sender = self.engine("prefill", rank=rank, num_ranks=num_ranks)
        self.receiver = self.engine("decode", rank=0, num_ranks=1)
        self.region, self.target = self.receiver.allocate(split_layouts(1)[0])
        self.data = np.random.default_rng(1).integers(1, 256, 4096, np.uint8)
        self.source = self.sender.register(memoryview(self.data))

    def engine(self, name: str, *, rank: int, num_ranks: int) -> TransferEngine:
        transport = ChaosTransport(
            FakeTransport(self.network, name=name, rank=rank, generation=1),
            self.faults,
            num_ranks=num_ranks,
            name=name,
            clock=self.clock,
        )
        engine = TransferEngine(transport, rank=rank, generation=1)
        engine.open()
        return engine

    def write(self, imm: int, at: int = 0, *, token: CancelToken | None = None) -> Completion:
        moved = fragments((at, at, 8))
        return self.sender.write(self.source, self.target, moved, imm=imm, token=token)

    def expect(self, imm: int, num_bytes: int) -> None:
        self.receiver.expect(imm, num_bytes)

    def go_on(self, seconds: float = 0.0) -> None:
        self.clock.time_s += seconds
        self.sender.poll()
        self.network.settle()

    def landed(self, at: int) -> bool:
        landed = np.frombuffer(self.region.buffer, np.uint8)[at : at + 8]
        return bool((landed == self.data[at : at + 8]).all())

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def is_readable(engine: TransferEngine) -> bool:
    return bool(select.select([engine.fileno()], [], [], 0)[0])


def test_a_delayed_write_waits_its_time_and_then_lands() -> None:
    pair = Pair(delay_s=0.05)
    pair.expect(0, 8)
    done = pair.write(0)
    pair.go_on(0.04)
    assert not done.is_done()
    assert not pair.landed(0)
    pair.go_on(0.02)
    assert done.is_done()
    assert done.error() == ""
    assert pair.landed(0)
    assert pair.receiver.poll().completed == [0]
    assert pair.sender.counters()["headrace_transfer_chaos_held_writes_total"] == 1
    pair.close()


def test_a_rank_that_never_sleeps_lets_its_writes_go_on_too() -> None:
    pair = Pair(delay_s=0.05)
    done = pair.write(0)
    pair.clock.time_s += 0.06
    assert not done.is_done()
    pair.network.settle()
    assert done.is_done()
    pair.close()


def test_a_session_that_loses_a_write_loses_one_and_the_sender_sees_success() -> None:
    pair = Pair(lose=1.0)
    num_layers = len(pair.target.layout.layers)
    for imm in range(8):
        writes = [pair.write(imm, at=8 * number) for number in range(num_layers + 2)]
        pair.go_on()
        assert all(one.is_done() and not one.error() for one in writes)
    arrived = pair.receiver.poll().immediates + pair.receiver.poll().immediates
    assert arrived == []
    for imm in range(8):
        pair.expect(imm, 1 << 20)
    arrived = pair.receiver.poll().immediates
    assert len(arrived) == 8 * (num_layers + 1)
    missing = {
        imm: set(range(num_layers + 2)) - {one.write_number for one in arrived if one.imm == imm}
        for imm in range(8)
    }
    assert all(len(numbers) == 1 for numbers in missing.values())
    assert len(set.union(*missing.values())) > 1
    assert pair.sender.counters()["headrace_transfer_chaos_lost_writes_total"] == 8
    pair.close()


def test_a_lost_write_moves_no_byte_and_wakes_its_sender() -> None:
    pair = Pair(lose=1.0)
    for number in range(len(pair.target.layout.layers)):
        assert not is_readable(pair.sender)
        pair.write(0, at=8 * number)
        if is_readable(pair.sender):
            break
    else:
        raise AssertionError("no write of the session was lost")
    pair.network.settle()
    assert not pair.landed(8 * number)
    pair.close()


def test_one_rank_of_the_replica_loses_the_write_and_all_agree_which() -> None:
    lost = []
    for rank in range(3):
        pair = Pair(lose=1.0, num_ranks=3, rank=rank)
        for imm in range(30):
            for number in range(len(pair.target.layout.layers)):
                pair.write(imm, at=8 * number)
        lost.append(pair.sender.counters()["headrace_transfer_chaos_lost_writes_total"])
        pair.close()
    assert sum(lost) == 30
    assert all(lost)


@pytest.mark.parametrize("lose", [0.03, 0.5])
def test_the_share_of_sessions_that_lose_a_write_is_the_one_asked_for(lose: float) -> None:
    pair = Pair(lose=lose)
    num_sessions = 2000
    for imm in range(num_sessions):
        for number in range(len(pair.target.layout.layers)):
            pair.write(imm, at=8 * number)
    count = pair.sender.counters()["headrace_transfer_chaos_lost_writes_total"]
    assert count == pytest.approx(lose * num_sessions, abs=4 * (num_sessions * lose) ** 0.5)
    pair.close()


def test_an_immediate_heard_twice_counts_once() -> None:
    pair = Pair(duplicate=1.0)
    pair.expect(0, 16)
    pair.write(0)
    pair.go_on()
    assert len(pair.receiver.poll().immediates) == 1
    assert is_readable(pair.receiver)
    arrivals = pair.receiver.poll()
    assert arrivals.immediates == []
    assert arrivals.completed == []
    counters = pair.receiver.counters()
    assert counters["headrace_transfer_immediates_dropped_repeat_total"] == 1
    pair.close()


def test_reordered_writes_all_land_in_their_time() -> None:
    pair = Pair(reorder=0.5)
    pair.expect(0, 8 * 32)
    writes = [pair.write(0, at=8 * number) for number in range(32)]
    for _ in range(4):
        pair.go_on(REORDER_S / 3)
    assert all(one.is_done() and not one.error() for one in writes)
    arrivals = pair.receiver.poll()
    assert arrivals.completed == [0]
    numbers = [one.write_number for one in arrivals.immediates]
    assert numbers != sorted(numbers) == list(range(32))
    pair.close()


def test_a_write_held_beyond_its_sessions_end_then_does_nothing() -> None:
    pair = Pair(hold=1.0, hold_s=3.0)
    token = CancelToken()
    done = pair.write(0, token=token)
    token.cancel()
    pair.go_on(2.0)
    assert not done.is_done()
    pair.go_on(2.0)
    assert done.is_done()
    assert "cancelled" in done.error()
    assert not pair.landed(0)
    pair.close()


def test_what_is_held_when_the_rank_leaves_never_goes_on() -> None:
    pair = Pair(delay_s=1.0)
    done = pair.write(0)
    pair.sender.close()
    pair.clock.time_s += 2.0
    assert done.is_done()
    assert "closed" in done.error()
    pair.network.settle()
    assert not pair.landed(0)
    pair.receiver.close()


def test_a_held_write_that_the_transport_refuses_fails_and_harms_no_other() -> None:
    pair = Pair(delay_s=1.0)
    stranger = RegionDescriptor(
        transport="nixl",
        name="x",
        doorbell="x",
        rank=0,
        generation=1,
        num_bytes=4096,
        layout=pair.target.layout,
    )
    bad = pair.sender.write(pair.source, stranger, fragments((0, 0, 8)), imm=0)
    good = pair.write(1)
    pair.go_on(2.0)
    assert "nixl" in bad.error()
    assert good.error() == ""
    pair.close()
    calm = Pair()
    with pytest.raises(TransferError, match="nixl"):
        calm.sender.write(calm.source, stranger, fragments((0, 0, 8)), imm=0)
    calm.close()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    shares=st.tuples(*[st.sampled_from([0.0, 0.3, 1.0])] * 3),
    steps=st.lists(st.integers(0, 3), max_size=30),
)
def test_whatever_goes_wrong_short_of_loss_every_sum_completes_once(
    seed: int, shares: tuple[float, float, float], steps: list[int]
) -> None:
    duplicate, reorder, hold = shares
    pair = Pair(
        seed=seed, delay_s=0.01, duplicate=duplicate, reorder=reorder, hold=hold, hold_s=0.1
    )
    completed: list[int] = []
    for imm, number in enumerate(steps):
        pair.expect(imm, 8 * number)
        for at in range(number):
            pair.write(imm, at=8 * at)
        pair.go_on(0.01)
        completed += pair.receiver.poll().completed
    for _ in range(4):
        pair.go_on(0.1)
        completed += pair.receiver.poll().completed
    assert sorted(completed) == list(range(len(steps)))
    pair.close()
