from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.transport import CancelToken, Completion
from headrace.transfer.engine import TransferEngine
from headrace.transfer.fake_network import Script
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import FakeWorld, fragments, make_engine


class Lab:
    """A receiver with one region, and senders 0 and 1."""

    def __init__(self) -> None:
        self.world = FakeWorld()
        self.network = self.world.network
        self.receiver = make_engine(self.world, "decode.0")
        self.region, self.target = self.receiver.allocate(split_layouts(1)[0])
        self.senders = [make_engine(self.world, f"prefill.{r}", rank=r) for r in (0, 1)]
        self.receiver.expect(0, 1 << 40)

    def write(self, rank: int = 0, at: int = 0, token: CancelToken | None = None) -> Completion:
        sender: TransferEngine = self.senders[rank]
        source = sender.register(memoryview(np.full(8, 9, np.uint8)))
        return sender.write(source, self.target, fragments((0, at, 8)), imm=0, token=token)

    def landed(self) -> int:
        return sum(one == 9 for one in self.region.buffer)

    def rung(self) -> list[tuple[int, int]]:
        return [(one.source_rank, one.write_number) for one in self.receiver.poll().immediates]


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    for engine in (lab.receiver, *lab.senders):
        engine.close()


def test_nothing_moves_unless_pumped(lab: Lab) -> None:
    done = lab.write()
    assert lab.landed() == 0
    assert not done.is_done()
    lab.network.pump()
    assert lab.landed() == 8
    assert done.is_done()
    assert lab.rung() == [(0, 0)]


def test_delays_are_counted_in_pumps(lab: Lab) -> None:
    lab.network.script = Script(delay_pumps=2, ring_delay_pumps=1)
    lab.write()
    landed, rung = [], []
    for _ in range(4):
        lab.network.pump()
        landed.append(lab.landed())
        rung.append(len(lab.rung()))
    assert landed == [0, 0, 8, 8]
    assert rung == [0, 0, 0, 1]


def test_a_held_rank_writes_when_it_is_released(lab: Lab) -> None:
    lab.network.script.held_ranks.add(1)
    held, free = lab.write(1, at=0), lab.write(0, at=100)
    lab.network.settle()
    assert (held.is_done(), free.is_done()) == (False, True)
    assert lab.network.num_posted() == 1
    lab.network.script.held_ranks.clear()
    lab.network.settle()
    assert lab.landed() == 16


def test_a_write_held_past_its_cancelling_never_lands(lab: Lab) -> None:
    lab.network.script.held_ranks.add(0)
    token = CancelToken()
    held = lab.write(token=token)
    token.cancel()
    lab.network.script.held_ranks.clear()
    lab.network.settle()
    assert "cancelled" in held.error()
    assert lab.landed() == 0


def test_a_write_that_has_begun_lands_whatever_is_cancelled(lab: Lab) -> None:
    lab.network.script.stuck_ranks.add(0)
    token = CancelToken()
    begun = lab.write(token=token)
    lab.network.pump()
    token.cancel()
    late = lab.write(at=100, token=token)
    lab.network.pump()
    assert not begun.is_done()
    lab.network.script.stuck_ranks.clear()
    lab.network.settle()
    assert begun.error() == ""
    assert "cancelled" in late.error()
    assert lab.landed() == 8


def test_a_failing_rank_fails_at_posting(lab: Lab) -> None:
    lab.network.script.failing_ranks.add(1)
    assert lab.write(1).error() == "post failed"
    assert lab.write(0).error() == ""


def test_a_losing_rank_lands_but_never_rings(lab: Lab) -> None:
    lab.network.script.losing_ranks.add(1)
    done = lab.write(1)
    lab.network.settle()
    assert lab.landed() == 8
    assert done.is_done()
    assert done.error() == ""
    assert lab.rung() == []
    assert lab.network.counts["lost"] == 1


def test_duplicates_come_later_and_are_dropped_by_the_receiver(lab: Lab) -> None:
    lab.network.script.duplicate = 1.0
    lab.write()
    lab.network.settle()
    assert lab.rung() == [(0, 0)]
    assert lab.receiver.counters()["headrace_transfer_immediates_dropped_repeat_total"] == 1


def test_reordering_loses_nothing_and_repeats_by_seed(lab: Lab) -> None:
    lab.network.script.is_reordered = True
    for at in range(20):
        lab.write(at=at * 8)
    lab.network.settle()
    came = lab.rung()
    assert sorted(came) == [(0, n) for n in range(20)]
    assert came != sorted(came)
    other = Lab()
    other.network.script.is_reordered = True
    for at in range(20):
        other.write(at=at * 8)
    other.network.settle()
    assert other.rung() == came
    for engine in (other.receiver, *other.senders):
        engine.close()


def test_loss_is_a_matter_of_the_seed(lab: Lab) -> None:
    lab.network.script.lose = 0.5
    for at in range(40):
        lab.write(at=at * 8)
    lab.network.settle()
    assert 5 < len(lab.rung()) < 35
    assert lab.landed() == 320
