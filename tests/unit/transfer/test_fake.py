import pytest

from headrace.core.errors import TransferError
from headrace.core.transport import CancelToken, Immediate
from headrace.transfer.fake import FakeTransport
from headrace.transfer.fake_network import FakeNetwork
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import fragments, wait_readable


def make(network: FakeNetwork, name: str = "a") -> FakeTransport:
    transport = FakeTransport(network, name=name, rank=0, generation=1)
    transport.open()
    return transport


def test_on_an_automatic_network_polling_is_enough() -> None:
    network = FakeNetwork(is_automatic=True)
    transport = make(network)
    _, target = transport.allocate(split_layouts(1)[0])
    immediate = Immediate(0, 0, 1, 0, 4)
    done = transport.write(
        memoryview(b"abcd"), target, fragments((0, 0, 4)), immediate=immediate, token=CancelToken()
    )
    came: list[Immediate] = []
    while not came:
        assert wait_readable(transport.fileno())
        came += transport.poll()
    assert done.is_done()
    assert came == [immediate]
    transport.close()


def test_a_transport_that_is_not_open_has_nothing_to_wait_on() -> None:
    transport = FakeTransport(FakeNetwork(), name="a", rank=0, generation=1)
    with pytest.raises(RuntimeError, match="not open"):
        transport.fileno()


def test_a_closed_region_takes_no_more_writes() -> None:
    network = FakeNetwork()
    transport = make(network)
    region, target = transport.allocate(split_layouts(1)[0])
    region.close()
    done = transport.write(
        memoryview(b"abcd"),
        target,
        fragments((0, 0, 4)),
        immediate=Immediate(0, 0, 1, 0, 4),
        token=CancelToken(),
    )
    network.settle()
    assert "is gone" in done.error()
    assert not any(region.buffer)
    transport.close()


def test_a_shm_region_is_refused() -> None:
    network = FakeNetwork()
    transport = make(network)
    _, target = transport.allocate(split_layouts(1)[0])
    foreign = type(target)(
        **{**{f: getattr(target, f) for f in target.__struct_fields__}, "transport": "shm"}
    )
    with pytest.raises(TransferError, match="expected a fake one"):
        transport.write(
            memoryview(b"abcd"),
            foreign,
            fragments((0, 0, 4)),
            immediate=Immediate(0, 0, 1, 0, 4),
            token=CancelToken(),
        )
    transport.close()
