import os
import threading

import msgspec
import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.transfer.engine import TransferEngine
from headrace.transfer.tcp import TcpTransport
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_tcp import RawOwner, wait_until
from tests.support.transfer_world import TcpWorld, fragments, grant_all, make_engine

(LAYOUT,) = split_layouts(1)
SOURCE = np.random.default_rng(1).integers(1, 256, 4096, np.uint8)


class Lab:
    """A sender, and receivers that come and go."""

    def __init__(self) -> None:
        self.world = TcpWorld()
        self.sender = make_engine(self.world, "prefill.3", rank=3, generation=7)
        self.source = self.sender.register(memoryview(SOURCE))
        self.engines = [self.sender]

    def receiver(self, *, generation: int = 4, sessions: int = 2) -> TransferEngine:
        engine = make_engine(self.world, "decode.0", generation=generation)
        self.engines.append(engine)
        self.region, self.target = engine.allocate(LAYOUT)
        for imm in range(sessions):
            engine.grant(imm, grant_all(self.target, writer="prefill.3", generation=7))
        return engine

    def send(self, imm: int) -> str:
        """Write eight bytes and end the session; return the first error."""
        write = self.sender.write(self.source, self.target, fragments((0, 0, 8)), imm=imm)
        self.world.settle(self.sender, [write])
        fence = self.sender.end_writes(self.target, imm)
        self.world.settle(self.sender, [fence])
        return write.error() or fence.error()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("headrace-tcp")]


@pytest.fixture
def lab():  # type: ignore[no-untyped-def]
    lab = Lab()
    yield lab
    lab.close()


def test_nothing_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    lab = Lab()
    lab.receiver()
    assert lab.send(0) == ""
    lab.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_addresses_are_minted_per_generation(lab: Lab) -> None:
    names = set()
    for generation in (1, 2):
        lab.receiver(generation=generation)
        assert lab.target.doorbell.startswith("tcp://127.0.0.1:")
        assert lab.target.name == f"{lab.target.doorbell}/0"
        names.add(lab.target.name)
    assert len(names) == 2


def test_a_write_to_a_session_that_is_over_is_refused_and_touches_nothing(lab: Lab) -> None:
    receiver = lab.receiver()
    receiver.expect(0, 8)
    receiver.retire(0)
    assert "refused bytes: its session is over there" in lab.send(0)
    assert not np.frombuffer(lab.region.buffer, np.uint8).any()
    assert receiver.counters()["headrace_transfer_refused_frames_total"] == 1
    assert lab.send(1) == ""


def test_a_link_that_broke_fails_its_sessions_and_is_made_anew_for_others(lab: Lab) -> None:
    receiver = lab.receiver()
    world, sender = lab.world, lab.sender
    first = sender.write(lab.source, lab.target, fragments((0, 0, 8)), imm=0)
    world.settle(sender, [first])
    (link,) = sender._transport._links.values()  # type: ignore[attr-defined]
    link.shut("the cable was pulled")
    second = sender.write(lab.source, lab.target, fragments((0, 8, 8)), imm=0)
    world.settle(sender, [second])
    assert second.error() == "the cable was pulled"
    fence = sender.end_writes(lab.target, 0)
    world.settle(sender, [fence])
    assert fence.error() == "the cable was pulled"
    assert lab.send(1) == ""
    wait_until(lambda: receiver.poll().immediates or True, "polled")


def test_an_owner_that_came_back_elsewhere_is_another_owner(lab: Lab) -> None:
    lab.receiver(generation=4).close()
    assert "Connection refused" in lab.send(0)
    lab.receiver(generation=5)
    assert lab.send(0) == ""


def test_a_descriptor_of_an_older_generation_is_refused(lab: Lab) -> None:
    lab.receiver()
    lab.target = type(lab.target)(
        **{name: getattr(lab.target, name) for name in lab.target.__struct_fields__}
        | {"generation": 3}
    )
    assert "other generation" in lab.send(0)


def test_forgetting_an_owner_ends_what_waits_for_it(lab: Lab) -> None:
    lab.receiver()
    owner = RawOwner()
    stuck = type(lab.target)(
        **{name: getattr(lab.target, name) for name in lab.target.__struct_fields__}
        | {"doorbell": owner.address, "name": f"{owner.address}/0"}
    )
    write = lab.sender.write(lab.source, stuck, fragments((0, 0, 8)), imm=0)
    lab.sender.forget(stuck)
    owner.close()
    lab.world.settle(lab.sender, [write])
    assert write.error() == f"{stuck.doorbell} is gone"
    lab.sender.forget(stuck)
    assert lab.sender.end_writes(stuck, 0).error()


@pytest.mark.parametrize(
    ("field", "value"),
    [("transport", "shm"), ("name", "tcp://elsewhere:1/0"), ("doorbell", "nonsense")],
)
def test_a_descriptor_that_is_not_one_is_refused(lab: Lab, field: str, value: str) -> None:
    lab.receiver()
    wrong = type(lab.target)(
        **{name: getattr(lab.target, name) for name in lab.target.__struct_fields__}
        | {field: value}
    )
    with pytest.raises(TransferError, match="expected a tcp region"):
        lab.sender.write(lab.source, wrong, fragments((0, 0, 8)), imm=0)


def test_only_own_regions_can_be_granted(lab: Lab) -> None:
    receiver, foreign = lab.receiver(), lab.sender.allocate(LAYOUT)[1]
    with pytest.raises(TransferError, match="expected one of tcp://"):
        receiver.grant(9, grant_all(foreign, writer="prefill.3", generation=7))


def test_a_transport_that_is_not_open_refuses_work(lab: Lab) -> None:
    lab.receiver()
    closed = TcpTransport(owner="prefill.4", rank=4, generation=1, key=b"k" * 16)
    engine = TransferEngine(closed, rank=4, generation=1)
    with pytest.raises(TransferError, match="not open"):
        engine.write(lab.source, lab.target, fragments((0, 0, 8)), imm=0)


def test_links_that_ended_are_not_kept(lab: Lab) -> None:
    for generation in range(1, 6):
        receiver = lab.receiver(generation=generation)
        assert lab.send(0) == ""
        receiver.close()
        lab.sender.forget(lab.target)
        (link,) = lab.sender._transport._ending  # type: ignore[attr-defined]
        wait_until(lambda link=link: not link.is_alive(), "its threads ended")


@pytest.mark.parametrize(
    "doorbell", ["tcp://h:99999", "tcp://h:x", "tcp://h", "tcp://:5", "http://h:5", "tcp://[:5", ""]
)
def test_a_doorbell_that_is_no_address_is_refused(lab: Lab, doorbell: str) -> None:
    lab.receiver()
    strange = msgspec.structs.replace(lab.target, doorbell=doorbell, name=f"{doorbell}/0")
    with pytest.raises(TransferError, match="expected"):
        lab.sender.write(lab.source, strange, fragments((0, 0, 8)), imm=0)


def test_a_region_number_that_fits_no_frame_is_refused(lab: Lab) -> None:
    lab.receiver()
    strange = msgspec.structs.replace(lab.target, name=f"{lab.target.doorbell}/{2**32}")
    with pytest.raises(TransferError, match="expected a tcp region"):
        lab.sender.write(lab.source, strange, fragments((0, 0, 8)), imm=0)


@pytest.mark.parametrize("host", ["a" * 70, "a..b"])
def test_a_host_that_no_resolver_takes_fails_its_writes_at_once(lab: Lab, host: str) -> None:
    lab.receiver()
    lab.target = msgspec.structs.replace(
        lab.target, doorbell=f"tcp://{host}:5", name=f"tcp://{host}:5/0"
    )
    assert f"connection to {host}:5" in lab.send(0)
