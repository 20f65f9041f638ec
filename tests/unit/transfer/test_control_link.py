"""A link delivers each frame once and in order, whatever happens to its connections."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.codec import Codec
from headrace.core.messages import Abort
from headrace.transfer.control_link import LINK_BYTES, Incoming, Outgoing, Seal
from tests.support.tcp_wire import Wire, wire_to
from tests.support.transfer_world import PATIENCE_S

CODEC = Codec(b"0123456789abcdef")
SEAL = Seal(CODEC)
HERE = "tcp://10.0.0.1:7"
SENDER = bytes(16)


def frame(number: int) -> bytes:
    return CODEC.encode(Abort(request_id=str(number)))


class Ends:
    """Both ends of a link whose connection runs over a wire."""

    def __init__(self, context: zmq.Context, router: zmq.Socket, wire: Wire) -> None:
        self.counts: Counter[str] = Counter()
        address = f"tcp://127.0.0.1:{wire.port}"
        self.router = router
        self.incoming = Incoming((address,), seal=SEAL, counts=self.counts)
        self.outgoing = Outgoing(context, address, seal=SEAL, max_unacked=64, counts=self.counts)
        self.frames: list[bytes] = []

    def take(self) -> None:
        """Receive what is there, acknowledge it, and let the sender look after its link."""
        while self.router.poll(0):
            frame = self.incoming.take(*self.router.recv_multipart())
            self.frames += [frame] if frame is not None else []
        for parts in self.incoming.acks():
            self.router.send_multipart(list(parts))
        self.outgoing.service()

    def take_until(self, num_frames: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.frames) < num_frames:
            assert time.monotonic() < deadline_s, self.counts
            self.router.poll(20)
            self.take()


@pytest.fixture
def ends() -> Iterator[tuple[Ends, Wire]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with wire_to(("127.0.0.1", port)) as wire:
            both = Ends(context, router, wire)
            yield both, wire
            both.outgoing.close()


def test_frames_lost_with_a_connection_are_sent_again_in_order(ends: tuple[Ends, Wire]) -> None:
    both, wire = ends
    assert both.outgoing.send(frame(0))
    both.take_until(1)
    wire.hold()
    assert all(both.outgoing.send(frame(number)) for number in range(1, 30))
    deadline_s = time.monotonic() + PATIENCE_S
    # Until the wire has swallowed some of them nothing is lost by cutting it.
    while both.counts["resent"] == 0:
        assert time.monotonic() < deadline_s
        wire.cut()
        both.router.poll(20)
        both.take()
    both.take_until(30)
    assert both.frames == [frame(number) for number in range(30)]


def test_many_cuts_lose_and_repeat_nothing(ends: tuple[Ends, Wire]) -> None:
    both, wire = ends
    number = 0
    for _ in range(6):
        for _ in range(40):
            while not both.outgoing.send(frame(number)):
                both.router.poll(20)
                both.take()
            number += 1
        wire.cut()
        both.take()
    both.take_until(number)
    assert both.frames == [frame(one) for one in range(number)]


def test_a_peer_that_takes_nothing_fills_a_bounded_queue(ends: tuple[Ends, Wire]) -> None:
    both, _ = ends
    assert sum(both.outgoing.send(frame(number)) for number in range(100)) == 64
    both.take_until(64)
    both.outgoing.send(frame(64))
    both.take_until(65)
    assert both.frames == [frame(number) for number in range(65)]


def test_a_frame_that_was_recorded_is_not_taken_again() -> None:
    counts: Counter[str] = Counter()
    incoming = Incoming((HERE,), seal=SEAL, counts=counts)
    sealed = [SEAL.frame(HERE, SENDER, number, frame(number)) for number in range(3)]
    assert incoming.take(b"x", sealed[0]) == frame(0)
    assert incoming.take(b"y", sealed[0]) is None
    assert incoming.take(b"y", sealed[2]) is None
    assert incoming.take(b"y", sealed[1]) == frame(1)
    assert counts == {"repeated": 1, "early": 1}


def test_a_frame_for_another_address_or_of_another_key_is_not_taken() -> None:
    counts: Counter[str] = Counter()
    incoming = Incoming((HERE,), seal=SEAL, counts=counts)
    other = Seal(Codec(b"another deployment's key"))
    assert incoming.take(b"x", SEAL.frame("tcp://10.0.0.2:7", SENDER, 0, frame(0))) is None
    assert incoming.take(b"x", other.frame(HERE, SENDER, 0, frame(0))) is None
    assert counts == {"bad_frames": 2}
    assert incoming.acks() == []


def test_an_acknowledgement_holds_for_its_sender_only() -> None:
    ack = SEAL.ack(SENDER, 5)
    assert SEAL.open_ack(ack, SENDER) == 5
    assert SEAL.open_ack(ack, b"\1" * 16) is None
    assert SEAL.open_ack(ack[:-1], SENDER) is None


@given(noise=st.binary(max_size=200))
def test_noise_is_never_a_frame(noise: bytes) -> None:
    assert SEAL.open(noise, HERE) is None
    assert SEAL.open_ack(noise, SENDER) is None


@given(at=st.integers(0, LINK_BYTES + 19), flip=st.integers(1, 255))
def test_a_changed_stamp_is_never_believed(at: int, flip: int) -> None:
    sealed = bytearray(SEAL.frame(HERE, SENDER, 3, frame(3)))
    sealed[at] ^= flip
    assert SEAL.open(bytes(sealed), HERE) is None
