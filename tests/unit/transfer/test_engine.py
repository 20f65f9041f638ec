"""What the engine adds to a transport; what all transports share is in the conformance tests."""

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.transfer.engine import TransferEngine
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import FakeWorld, fragments, make_engine


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def engine(world: FakeWorld) -> Iterator[TransferEngine]:
    engine = make_engine(world, "decode.0")
    yield engine
    engine.close()


def test_minted_ids_never_repeat(engine: TransferEngine) -> None:
    assert len({engine.next_imm() for _ in range(100)}) == 100


def test_a_write_without_fragments_is_refused(engine: TransferEngine) -> None:
    region, target = engine.allocate(split_layouts(1)[0])
    with pytest.raises(TransferError, match="without fragments"):
        engine.write(region, target, fragments(), imm=0)


def test_write_numbers_run_per_session_and_region(engine: TransferEngine, world: FakeWorld) -> None:
    region, target = engine.allocate(split_layouts(1)[0])
    for imm in (0, 1, 0):
        engine.write(region, target, fragments((0, 8, 8)), imm=imm)
    world.network.settle()
    engine.expect(0, 16)
    engine.expect(1, 8)
    arrivals = engine.poll()
    numbers = sorted((one.imm, one.write_number) for one in arrivals.immediates)
    assert numbers == [(0, 0), (0, 1), (1, 0)]
    assert sorted(arrivals.completed) == [0, 1]


def test_expecting_judges_by_writer(engine: TransferEngine, world: FakeWorld) -> None:
    region, target = engine.allocate(split_layouts(1)[0])
    engine.expect(0, 8, writers={0: 2})
    engine.write(region, target, fragments((0, 8, 8)), imm=0)
    world.network.settle()
    assert engine.poll().immediates == []
    assert engine.counters()["headrace_transfer_immediates_dropped_stale_total"] == 1


def test_a_retired_id_is_heard_no_more(engine: TransferEngine, world: FakeWorld) -> None:
    region, target = engine.allocate(split_layouts(1)[0])
    engine.expect(0, 8)
    engine.retire(0)
    engine.write(region, target, fragments((0, 8, 8)), imm=0)
    world.network.settle()
    assert engine.poll().immediates == []


def test_ended_writes_are_forgotten(engine: TransferEngine) -> None:
    region, target = engine.allocate(split_layouts(1)[0])
    engine.write(region, target, fragments((0, 8, 8)), imm=0)
    engine.end_writes(target, 0)
    assert engine._next_write == {}


def test_registered_memory_is_the_callers(engine: TransferEngine) -> None:
    data = np.arange(4, dtype=np.float32)
    region = engine.register(memoryview(data))
    assert len(region.buffer) == 16
    region.close()
    assert data.sum() == 6
