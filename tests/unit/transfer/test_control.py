import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from headrace.core.codec import Codec
from headrace.core.errors import ConfigError
from headrace.core.messages import Abort, Message, SessionQuiet, Shutdown
from headrace.transfer.control import MAX_QUEUED, AsyncControlSocket, ControlSocket
from tests.support.transfer_world import PATIENCE_S

CODEC = Codec(b"0123456789abcdef")


def address(tmp_path: Path, name: str) -> str:
    return f"ipc://{tmp_path}/{name}.ctl"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ControlSocket, ControlSocket]]:
    sockets = [ControlSocket(address(tmp_path, name), CODEC) for name in "ab"]
    for one in sockets:
        one.open()
    yield sockets[0], sockets[1]
    for one in sockets:
        one.close()


def receive(one: ControlSocket, number: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < number:
        assert one.wait(PATIENCE_S)
        found += one.recv_all()
    return found


def abort(n: int) -> Abort:
    return Abort(request_id=str(n))


def test_messages_of_one_peer_arrive_in_order(pair: tuple[ControlSocket, ControlSocket]) -> None:
    a, b = pair
    sent = [abort(n) for n in range(500)]
    assert all(a.send(b.address, one) for one in sent)
    assert receive(b, 500) == sent
    assert b.recv_all() == []


def test_a_process_can_send_to_itself(pair: tuple[ControlSocket, ControlSocket]) -> None:
    a, _ = pair
    a.send(a.address, Shutdown())
    assert receive(a, 1) == [Shutdown()]


def test_a_limit_leaves_the_rest_for_later(pair: tuple[ControlSocket, ControlSocket]) -> None:
    a, b = pair
    for n in range(5):
        b.send(a.address, abort(n))
    first: list[Message] = []
    while len(first) < 2:
        assert a.wait(PATIENCE_S)
        first += a.recv_all(limit=2 - len(first))
    assert first + receive(a, 3) == [abort(n) for n in range(5)]


def test_bad_frames_are_dropped_and_counted(
    pair: tuple[ControlSocket, ControlSocket], tmp_path: Path
) -> None:
    a, _ = pair
    stranger = ControlSocket(address(tmp_path, "x"), Codec(b"another deployment's key"))
    stranger.open()
    stranger.send(a.address, Shutdown())
    with zmq.Context() as context, context.socket(zmq.PUSH) as raw:
        raw.connect(a.address)
        raw.send(b"noise")
        raw.send(b"")
        while a.counters()["headrace_control_bad_frames_total"] < 3:
            assert a.wait(PATIENCE_S)
            assert a.recv_all() == []
    stranger.close()


def test_a_peer_that_is_gone_never_blocks_and_holds_a_bounded_queue(
    pair: tuple[ControlSocket, ControlSocket], tmp_path: Path
) -> None:
    a, _ = pair
    nowhere = address(tmp_path, "nowhere")
    taken = sum(a.send(nowhere, abort(n)) for n in range(MAX_QUEUED + 100))
    assert taken == MAX_QUEUED
    assert a.counters()["headrace_control_refused_total"] == 100
    a.forget(nowhere)
    a.forget(nowhere)
    assert a.send(nowhere, abort(0))


def test_what_was_sent_before_the_peer_bound_arrives(
    pair: tuple[ControlSocket, ControlSocket], tmp_path: Path
) -> None:
    a, _ = pair
    late = ControlSocket(address(tmp_path, "late"), CODEC)
    a.send(late.address, abort(1))
    late.open()
    assert receive(late, 1) == [abort(1)]
    late.close()


def test_waiting_ends_by_another_descriptor_or_by_time(
    pair: tuple[ControlSocket, ControlSocket],
) -> None:
    a, _ = pair
    assert not a.wait(0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not a.wait(0.001, ours.fileno())
        theirs.send(b"x")
        assert a.wait(PATIENCE_S, ours.fileno())


def test_a_last_word_is_delivered_if_it_may_linger(
    pair: tuple[ControlSocket, ControlSocket],
) -> None:
    a, b = pair
    a.send(b.address, abort(7))
    a.close(linger_s=PATIENCE_S)
    assert receive(b, 1) == [abort(7)]


def test_closing_leaves_no_socket_file(tmp_path: Path) -> None:
    one = ControlSocket(address(tmp_path, "c"), CODEC)
    one.open()
    assert list(tmp_path.iterdir())
    one.close()
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_cannot_be_bound_is_one_clear_line(
    pair: tuple[ControlSocket, ControlSocket], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"takes 107; choose a shorter run folder"):
        ControlSocket(address(tmp_path, "x" * 108), CODEC).open()
    with pytest.raises(ConfigError, match="cannot bind"):
        ControlSocket("tcp://127.0.0.1:notaport", CODEC).open()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="in use"):
            ControlSocket(f"tcp://127.0.0.1:{taken.getsockname()[1]}", CODEC).open()


def test_using_a_socket_that_is_not_open_is_a_mistake(tmp_path: Path) -> None:
    one = ControlSocket(address(tmp_path, "n"), CODEC)
    with pytest.raises(RuntimeError, match="not open"):
        one.recv_all()
    with pytest.raises(RuntimeError, match="not open"):
        one.send(one.address, Shutdown())


async def test_a_loop_receives_and_sends(tmp_path: Path) -> None:
    edge = AsyncControlSocket(address(tmp_path, "edge"), CODEC)
    edge.open()
    rank = ControlSocket(address(tmp_path, "rank"), CODEC)
    rank.open()
    waiting = asyncio.ensure_future(edge.recv())
    await asyncio.sleep(0)
    rank.send(edge.address, abort(1))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == abort(1)
    for n in range(50):
        rank.send(edge.address, abort(n))
    assert [await asyncio.wait_for(edge.recv(), PATIENCE_S) for _ in range(50)] == [
        abort(n) for n in range(50)
    ]
    quiet = SessionQuiet(session_id="s", rank=0, generation=1)
    assert edge.send(rank.address, quiet)
    assert receive(rank, 1) == [quiet]
    assert edge.counters()["headrace_control_received_total"] == 51
    edge.forget(rank.address)
    edge.close()
    edge.close()
    rank.close()
    assert list(tmp_path.iterdir()) == []


async def test_closing_ends_a_pending_receive(tmp_path: Path) -> None:
    edge = AsyncControlSocket(address(tmp_path, "edge"), CODEC)
    edge.open()
    waiting = asyncio.ensure_future(edge.recv())
    await asyncio.sleep(0)
    edge.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.fixture
def spanning(tmp_path: Path) -> Iterator[tuple[ControlSocket, ControlSocket]]:
    sockets = [ControlSocket(address(tmp_path, name), CODEC, host="127.0.0.1") for name in "ab"]
    for one in sockets:
        one.open()
    yield sockets[0], sockets[1]
    for one in sockets:
        one.close()
    assert list(tmp_path.iterdir()) == []


def test_between_hosts_a_socket_is_reached_at_a_port_and_at_home_by_its_path(
    spanning: tuple[ControlSocket, ControlSocket], tmp_path: Path
) -> None:
    a, b = spanning
    assert b.address.startswith("tcp://127.0.0.1:")
    for n in range(500):
        assert a.send(b.address, abort(n))
    assert receive(b, 500) == [abort(n) for n in range(500)]
    a.send(address(tmp_path, "b"), abort(7))
    assert receive(b, 1) == [abort(7)]


def test_between_hosts_more_can_be_sent_than_a_queue_holds_while_the_peer_takes_it(
    spanning: tuple[ControlSocket, ControlSocket],
) -> None:
    a, b = spanning
    found: list[Message] = []
    for n in range(2 * MAX_QUEUED):
        while not a.send(b.address, abort(n)):
            b.wait(0.02)
            found += b.recv_all()
    found += receive(b, 2 * MAX_QUEUED - len(found))
    assert found == [abort(n) for n in range(2 * MAX_QUEUED)]


def test_a_frame_without_a_link_is_not_taken_between_hosts(
    spanning: tuple[ControlSocket, ControlSocket],
) -> None:
    a, _ = spanning
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.connect(a.address)
        raw.send(CODEC.encode(Shutdown()))
        raw.send_multipart([b"", CODEC.encode(Shutdown())])
        while a.counters()["headrace_control_bad_frames_total"] < 2:
            assert a.wait(PATIENCE_S)
            assert a.recv_all() == []


async def test_a_loop_receives_and_sends_between_hosts(tmp_path: Path) -> None:
    edge = AsyncControlSocket(address(tmp_path, "edge"), CODEC, host="127.0.0.1")
    edge.open()
    rank = ControlSocket(address(tmp_path, "rank"), CODEC, host="127.0.0.1")
    rank.open()
    waiting = asyncio.ensure_future(edge.recv())
    await asyncio.sleep(0)
    for n in range(300):
        rank.send(edge.address, abort(n))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == abort(0)
    for n in range(1, 300):
        assert await asyncio.wait_for(edge.recv(), PATIENCE_S) == abort(n)
    assert edge.send(rank.address, abort(1))
    assert receive(rank, 1) == [abort(1)]
    waiting = asyncio.ensure_future(edge.recv())
    await asyncio.sleep(0)
    edge.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)
    rank.close()
    assert list(tmp_path.iterdir()) == []


NO_ADDRESSES = [
    "",
    "nonsense",
    "ipc://",
    "ipc://\0x",
    "ipc://" + "a" * 200,
    "tcp://",
    "udp://1.2.3.4:5",
]


@pytest.mark.parametrize("nowhere", NO_ADDRESSES)
def test_what_is_no_address_is_refused_and_counted(
    pair: tuple[ControlSocket, ControlSocket], nowhere: str
) -> None:
    a, b = pair
    assert not a.send(nowhere, abort(1))
    assert a.counters()["headrace_control_refused_total"] == 1
    a.forget(nowhere)
    a.send(b.address, abort(2))
    assert receive(b, 1) == [abort(2)]


@pytest.mark.parametrize("nowhere", NO_ADDRESSES)
def test_between_hosts_what_is_no_address_is_refused_too(
    spanning: tuple[ControlSocket, ControlSocket], nowhere: str
) -> None:
    a, b = spanning
    assert not a.send(nowhere, abort(1))
    a.send(b.address, abort(2))
    assert receive(b, 1) == [abort(2)]
