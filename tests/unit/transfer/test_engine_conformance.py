"""What every transport must do alike, seen through the engine."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.core.chaos import WriteFaults
from headrace.core.errors import TransferError
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Completion, Grant, Region
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import (
    ChaosWorld,
    FakeWorld,
    ShmWorld,
    TcpWorld,
    World,
    fragments,
    grant_all,
    make_engine,
    wait_readable,
)

# Nothing is lost here: a lost write is just what the contract promises not to do in silence.
TROUBLE = WriteFaults(delay_s=0.002, duplicate=0.5, reorder=0.5, hold=0.1, hold_s=0.03)


@pytest.fixture(params=["fake", "shm", "tcp", "calm-chaos", "chaos", "chaos-tcp"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    match request.param:
        case "fake":
            return FakeWorld()
        case "shm":
            return ShmWorld(tmp_path)
        case "tcp":
            return TcpWorld()
        case "calm-chaos":
            return ChaosWorld(ShmWorld(tmp_path), WriteFaults())
        case "chaos":
            return ChaosWorld(ShmWorld(tmp_path), TROUBLE)
        case _:
            return ChaosWorld(TcpWorld(), TROUBLE)


class Pair:
    """A sender of rank 3 and a receiver with one region, all of it granted to sessions 0 and 1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sender = make_engine(world, "prefill.3", rank=3, generation=7)
        self.receiver = make_engine(world, "decode.0", generation=4)
        self.region: Region
        self.target: RegionDescriptor
        self.region, self.target = self.receiver.allocate(split_layouts(1)[0])
        self.data = np.random.default_rng(1).integers(1, 256, 65_536, np.uint8)
        self.source = self.sender.register(memoryview(self.data))
        for imm in (self.receiver.next_imm(), self.receiver.next_imm()):
            self.receiver.grant(imm, self.granted(self.target))

    @staticmethod
    def granted(region: RegionDescriptor) -> Grant:
        return grant_all(region, writer="prefill.3", generation=7)

    def settle(self, *writes: Completion, imm: int = 0) -> Completion:
        """Wait until writes are done, and until the session's fence says that they have landed."""
        self.world.settle(self.sender, writes)
        fence = self.sender.end_writes(self.target, imm)
        self.world.settle(self.sender, [fence])
        return fence

    def landed(self) -> np.ndarray:
        return np.frombuffer(self.region.buffer, np.uint8)


@pytest.fixture
def pair(world: World) -> Iterator[Pair]:
    pair = Pair(world)
    yield pair
    pair.sender.close()
    pair.receiver.close()


def test_a_region_starts_zeroed_and_says_who_owns_it(pair: Pair) -> None:
    assert not pair.landed().any()
    assert len(pair.region.buffer) == pair.target.num_bytes == pair.target.layout.num_bytes
    assert (pair.target.rank, pair.target.generation) == (0, 4)


def test_a_write_lands_its_fragments_and_nothing_else(pair: Pair) -> None:
    imm = 1
    pair.receiver.expect(imm, 300)
    moved = fragments((1000, 0, 100), (7, 500, 1), (40_000, 65_000, 199))
    done = pair.sender.write(pair.source, pair.target, moved, imm=imm)
    fence = pair.settle(done, imm=imm)
    assert done.is_done()
    assert (done.error(), fence.error()) == ("", "")
    want = np.zeros_like(pair.landed())
    want[0:100] = pair.data[1000:1100]
    want[500] = pair.data[7]
    want[65_000:65_199] = pair.data[40_000:40_199]
    np.testing.assert_array_equal(pair.landed(), want)
    assert wait_readable(pair.receiver.fileno())
    arrivals = pair.receiver.poll()
    assert arrivals.completed == [imm]
    (immediate,) = arrivals.immediates
    assert (immediate.source_rank, immediate.generation, immediate.num_bytes) == (3, 7, 300)


def test_many_small_fragments_land_right(pair: Pair) -> None:
    rng = np.random.default_rng(5)
    slots, homes = rng.permutation(512)[:200], rng.permutation(512)[:200]
    moved = fragments(
        *((int(a) * 128, int(b) * 128, 128) for a, b in zip(slots, homes, strict=True))
    )
    pair.settle(pair.sender.write(pair.source, pair.target, moved, imm=0))
    want = np.zeros_like(pair.landed()).reshape(-1, 128)
    want[homes] = pair.data.reshape(-1, 128)[slots]
    np.testing.assert_array_equal(pair.landed(), want.ravel())


def test_the_sum_completes_whatever_the_split_and_only_once(pair: Pair) -> None:
    pair.receiver.expect(0, 600)
    writes = [
        pair.sender.write(pair.source, pair.target, fragments((n, n, n)), imm=0)
        for n in (100, 200, 300)
    ]
    pair.settle(*writes)
    arrivals = pair.receiver.poll()
    assert arrivals.completed == [0]
    assert sorted(one.write_number for one in arrivals.immediates) == [0, 1, 2]
    assert pair.receiver.poll().completed == []


def test_a_cancelled_write_does_nothing(pair: Pair) -> None:
    token = CancelToken()
    token.cancel()
    done = pair.sender.write(pair.source, pair.target, fragments((0, 0, 64)), imm=0, token=token)
    pair.settle(done)
    assert "cancelled" in done.error()
    assert not pair.landed().any()
    assert pair.receiver.poll().immediates == []


@pytest.mark.parametrize(
    ("moved", "side"),
    [
        (fragments((65_500, 0, 64)), "source"),
        (fragments((-1, 0, 64)), "source"),
        (fragments((0, 131_072, 1)), "target"),
        (fragments((0, -64, 64)), "target"),
        (fragments((0, 64, -64)), "source|target"),
    ],
    ids=["source-end", "source-start", "target-end", "target-start", "negative-length"],
)
def test_a_write_outside_a_region_is_refused(pair: Pair, moved: object, side: str) -> None:
    assert pair.target.num_bytes == 32_768 * 2
    with pytest.raises(TransferError, match=side):
        pair.sender.write(pair.source, pair.target, moved, imm=0)  # type: ignore[arg-type]
    assert not pair.landed().any()


def test_a_write_to_a_region_that_is_gone_fails_and_later_ones_work(
    pair: Pair, world: World
) -> None:
    other, gone = pair.receiver.allocate(split_layouts(1)[0])
    imm = pair.receiver.next_imm()
    pair.receiver.grant(imm, pair.granted(gone))
    other.close()
    lost = pair.sender.write(pair.source, gone, fragments((0, 0, 8)), imm=imm)
    world.settle(pair.sender, [lost])
    fence = pair.sender.end_writes(gone, imm)
    world.settle(pair.sender, [fence])
    assert lost.error() or fence.error()
    kept = pair.sender.write(pair.source, pair.target, fragments((0, 0, 8)), imm=1)
    fence = pair.settle(kept, imm=1)
    assert (kept.error(), fence.error()) == ("", "")


def test_a_write_to_a_receiver_that_left_ends_with_an_error(pair: Pair, world: World) -> None:
    pair.receiver.close()
    done = pair.sender.write(pair.source, pair.target, fragments((0, 0, 8)), imm=0)
    world.settle(pair.sender, [done])
    assert done.error()


def test_the_sender_wakes_when_its_write_is_over(pair: Pair, world: World) -> None:
    done = pair.sender.write(pair.source, pair.target, fragments((0, 0, 8)), imm=0)
    world.settle(pair.sender, [done])
    again = pair.sender.write(pair.source, pair.target, fragments((8, 8, 8)), imm=0)
    if isinstance(world, FakeWorld):
        world.network.settle()
    assert wait_readable(pair.sender.fileno())
    world.settle(pair.sender, [again])


def test_the_fence_of_a_session_without_writes_ends_well(pair: Pair) -> None:
    assert pair.settle().error() == ""


def test_a_session_that_is_over_can_be_retired_with_its_grant(pair: Pair) -> None:
    pair.receiver.expect(0, 8)
    pair.settle(pair.sender.write(pair.source, pair.target, fragments((0, 0, 8)), imm=0))
    assert pair.receiver.poll().completed == [0]
    pair.receiver.retire(0)
    pair.receiver.expect(1, 8)
    pair.receiver.retire(1)


def test_a_write_of_many_mebibytes_lands_whole(world: World) -> None:
    (layout,) = split_layouts(1, num_blocks=5000)
    sender = make_engine(world, "prefill.3", rank=3, generation=7)
    receiver = make_engine(world, "decode.0", generation=4)
    region, target = receiver.allocate(layout)
    receiver.grant(0, grant_all(target, writer="prefill.3", generation=7))
    receiver.expect(0, layout.num_bytes)
    data = np.random.default_rng(2).integers(0, 256, layout.num_bytes, np.uint8)
    source = sender.register(memoryview(data))
    cut = layout.num_bytes // 3
    moved = fragments((0, 0, cut), (cut, cut, layout.num_bytes - cut))
    world.settle(sender, [sender.write(source, target, moved, imm=0)])
    world.settle(sender, [sender.end_writes(target, 0)])
    assert receiver.poll().completed == [0]
    np.testing.assert_array_equal(np.frombuffer(region.buffer, np.uint8), data)
    assert layout.num_bytes > 16 << 20
    sender.close()
    receiver.close()
    region.close()


def test_closing_twice_is_closing_once(world: World) -> None:
    engine = make_engine(world, "decode.1")
    engine.close()
    engine.close()


def test_a_descriptor_of_another_transport_is_refused(pair: Pair, world: World) -> None:
    stranger = RegionDescriptor(
        transport="nixl",
        name=pair.target.name,
        doorbell=pair.target.doorbell,
        rank=0,
        generation=4,
        num_bytes=pair.target.num_bytes,
        layout=pair.target.layout,
    )
    try:
        refused = pair.sender.write(pair.source, stranger, fragments((0, 0, 8)), imm=0)
    except TransferError as error:
        reason = str(error)
    else:
        # A write that was held is refused when it goes on.
        world.settle(pair.sender, [refused])
        reason = refused.error()
    assert "nixl" in reason


def test_counters_are_plain_numbers(pair: Pair) -> None:
    counters = {**pair.sender.counters(), **pair.receiver.counters()}
    assert counters
    assert all(name.startswith("headrace_transfer_") for name in counters)
