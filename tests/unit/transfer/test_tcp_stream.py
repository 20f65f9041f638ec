import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.transfer.tcp_stream import MAX_VECTORS, Stream
from tests.support.transfer_world import PATIENCE_S


class Ends:
    """A stream, and the plain socket at its other end."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.peer = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
            self.stream = Stream(listener.accept()[0], patience_s=patience_s)
        self.stream.prepare()

    def close(self) -> None:
        self.peer.close()
        self.stream.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture
def hasty() -> Iterator[Ends]:
    """A stream that is patient for no time at all."""
    ends = Ends(patience_s=0.001)
    yield ends
    ends.close()


def test_bytes_are_scattered_in_order_however_they_come(ends: Ends) -> None:
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8).tobytes()
    memory = bytearray(8000)
    view = memoryview(memory)
    views = [view[6000:6010], view[0:4000], view[4500:5490]]

    def send() -> None:
        for begin in range(0, 5000, 700):
            ends.peer.sendall(data[begin : begin + 700])

    thread = threading.Thread(target=send)
    thread.start()
    ends.stream.scatter(views)
    thread.join()
    assert b"".join(views) == data


def test_a_read_cut_short_by_the_kernel_goes_on(ends: Ends) -> None:
    """A kernel timeout in the middle returns part of the bytes."""
    soon = struct.pack("@ll", 0, 1000)
    ends.stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, soon)
    buffers = [bytearray(3), bytearray(4), bytearray(5)]
    ends.peer.sendall(b"12345")
    timer = threading.Timer(0.02, ends.peer.sendall, [b"6789abc"])
    timer.start()
    ends.stream.scatter([memoryview(one) for one in buffers])
    assert buffers == [b"123", b"4567", b"89abc"]
    timer.join()


def test_a_gather_larger_than_any_buffer_arrives_whole(ends: Ends) -> None:
    data = np.random.default_rng(2).integers(0, 256, 32 << 20, np.uint8)
    cut = len(data) // MAX_VECTORS
    views = [memoryview(data)[n * cut : (n + 1) * cut] for n in range(MAX_VECTORS)]
    thread = threading.Thread(target=ends.stream.gather, args=(views,))
    thread.start()
    came = bytearray(len(data))
    view = memoryview(came)
    while view:
        view = view[ends.peer.recv_into(view) :]
    thread.join()
    assert came == data.tobytes()


def test_a_peer_that_leaves_ends_the_read(ends: Ends) -> None:
    ends.peer.sendall(b"12")
    ends.peer.close()
    with pytest.raises(TransferError, match="was closed"):
        ends.stream.read(memoryview(bytearray(3)))


def test_a_read_that_stands_still_loses_patience(hasty: Ends) -> None:
    hasty.peer.sendall(b"1")
    with pytest.raises(TransferError, match=r"nothing moved for 0\.001 s"):
        hasty.stream.read(memoryview(bytearray(2)))


def test_a_send_that_stands_still_loses_patience(hasty: Ends) -> None:
    # Either we notice, or the kernel does and breaks the connection.
    with pytest.raises((TransferError, OSError)):
        hasty.stream.gather([bytes(64 << 20)])


def test_waiting_for_something_to_begin_takes_no_patience(hasty: Ends) -> None:
    timer = threading.Timer(1.2, hasty.peer.sendall, [b"1"])  # past one kernel timeout
    timer.start()
    memory = bytearray(1)
    hasty.stream.read(memoryview(memory), may_wait=True)
    assert memory == b"1"
    timer.join()


def test_cutting_ends_a_read_of_another_thread(ends: Ends) -> None:
    errors: list[BaseException] = []

    def read() -> None:
        try:
            ends.stream.read(memoryview(bytearray(1)), may_wait=True)
        except TransferError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    ends.stream.cut()
    thread.join(PATIENCE_S)
    assert [str(error) for error in errors] == ["the connection was closed"]
    ends.stream.cut()  # and again, to no effect


def test_a_handshake_has_a_deadline_however_fast_its_bytes_come(ends: Ends) -> None:
    ends.peer.sendall(b"123")
    assert ends.stream.read_by(time.monotonic() + PATIENCE_S, 2) == b"12"
    with pytest.raises(TransferError, match="took too long"):
        ends.stream.read_by(time.monotonic() - 1, 1)
    ends.peer.close()
    assert ends.stream.read_by(time.monotonic() + PATIENCE_S, 1) == b"3"
    with pytest.raises(TransferError, match="closed during the handshake"):
        ends.stream.read_by(time.monotonic() + PATIENCE_S, 1)
