"""Hostile and broken writers against a receiver; well-behaved ones are in the conformance tests."""

import secrets
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, ProtocolError
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import Immediate
from headrace.transfer.grants import Grants
from headrace.transfer.tcp_frames import MAX_FRAGMENTS, Frame, Kind, Refusal
from headrace.transfer.tcp_receiver import MAX_HANDSHAKES, MAX_LINK_SOCKETS, MAX_REFUSALS, Receiver
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_tcp import RawWriter, make_hello, wait_until
from tests.support.transfer_world import KEY, PATIENCE_S, grant_all

(LAYOUT,) = split_layouts(1)


class Lab:
    """A receiver of generation 4 with a region of ones, all of it granted to prefill.3."""

    def __init__(self, *, handshake_s: float = PATIENCE_S, patience_s: float = PATIENCE_S) -> None:
        self.arrived: list[Immediate] = []
        self.grants = Grants()
        self.receiver = Receiver(
            host="127.0.0.1",
            key=KEY,
            generation=4,
            grants=self.grants,
            deliver=self.arrived.append,
            handshake_s=handshake_s,
            patience_s=patience_s,
        )
        self.receiver.open()
        self.memory = bytearray(b"\x01" * LAYOUT.num_bytes)
        self.region = RegionDescriptor(
            transport="tcp",
            name="tcp://127.0.0.1/0",
            doorbell="tcp://127.0.0.1",
            rank=0,
            generation=4,
            num_bytes=LAYOUT.num_bytes,
            layout=LAYOUT,
        )
        self.grant(0)
        self.writers: list[RawWriter] = []

    def grant(self, imm: int) -> None:
        grant = grant_all(self.region, writer="prefill.3", generation=7)
        self.grants.add(imm, grant, number=0, buffer=memoryview(self.memory))

    def connect(self) -> RawWriter:
        self.writers.append(RawWriter(self.receiver.port))
        return self.writers[-1]

    def writer(self, **hello: object) -> RawWriter:
        return self.connect().shake_hands(make_hello(**hello))  # type: ignore[arg-type]

    def count(self, name: str) -> int:
        return self.receiver.counts[name]

    def check_untouched(self) -> None:
        assert self.memory.count(1) == len(self.memory)
        assert self.arrived == []

    def check_serves(self) -> None:
        """Whatever happened, a good writer is served."""
        writer = self.writer(link=secrets.token_bytes(4))
        writer.write([(0, 4)], b"good", write=99)
        assert writer.fence() == Refusal.NONE
        assert self.memory[:4] == b"good"
        self.memory[:4] = b"\x01" * 4
        assert self.arrived.pop().num_bytes == 4

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.receiver.close()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("headrace-tcp")]
        assert self.receiver.num_connections() == 0


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


# -- handshakes ---------------------------------------------------------------------------


def test_a_writer_without_the_key_never_gets_in(lab: Lab) -> None:
    with pytest.raises(ProtocolError, match="does not hold"):
        lab.connect().shake_hands(key=b"another key")
    lab.writers[0].close()
    wait_until(lambda: lab.count("failed_handshakes") == 1, "the handshake failed")
    lab.check_untouched()
    lab.check_serves()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=700), st.booleans())
def test_noise_is_no_handshake(lab: Lab, noise: bytes, has_prefix: bool) -> None:
    before = lab.count("failed_handshakes")
    writer = lab.connect()
    length = len(noise).to_bytes(2, "big")
    writer.push(b"HRKV" + length + noise if has_prefix else noise, is_last=True)
    wait_until(lambda: lab.count("failed_handshakes") == before + 1, "the handshake failed")
    lab.writers.remove(writer)
    writer.close()
    lab.check_untouched()


def test_a_silent_connection_is_closed_at_the_deadline() -> None:
    lab = Lab(handshake_s=0.01)
    assert lab.connect().is_ended()
    assert lab.count("failed_handshakes") == 1
    lab.close()


def test_handshakes_that_are_under_way_are_bounded(lab: Lab) -> None:
    for _ in range(MAX_HANDSHAKES):
        lab.connect()
    assert lab.connect().is_ended()
    assert lab.count("refused_connections") == 1
    for writer in lab.writers:
        writer.close()
    wait_until(lambda: lab.receiver.num_connections() == 0, "all gave up")
    lab.check_serves()


@pytest.mark.parametrize(
    ("hello", "why"),
    [({"target_generation": 3}, "other generation"), ({"generation": 6}, "stale writer")],
    ids=["target", "writer"],
)
def test_an_old_generation_is_refused_with_the_reason(
    lab: Lab, hello: dict[str, int], why: str
) -> None:
    lab.writer()
    with pytest.raises(ProtocolError, match=why):
        lab.writer(**hello)
    assert lab.count("refused_connections") == 1


def test_a_new_link_of_a_writer_ends_its_old_one(lab: Lab) -> None:
    old = [lab.writer(link=b"a"), lab.writer(link=b"a")]
    new = lab.writer(link=b"b")
    assert [writer.is_ended() for writer in old] == [True, True]
    assert new.fence() == Refusal.NONE


def test_sockets_of_one_link_are_bounded(lab: Lab) -> None:
    for _ in range(MAX_LINK_SOCKETS):
        lab.writer()
    with pytest.raises(ProtocolError, match="too many"):
        lab.writer()


# -- frames -------------------------------------------------------------------------------


def test_a_write_over_two_sockets_rings_once_when_all_of_it_is_there(lab: Lab) -> None:
    first, second = lab.writer(), lab.writer()
    first.write([(0, 3)], b"abc", total=5)
    assert first.fence() == Refusal.NONE
    assert lab.arrived == []
    second.write([(90, 2)], b"de", total=5)
    assert second.fence() == Refusal.NONE
    assert lab.memory[:3] + lab.memory[90:92] == b"abcde"
    (immediate,) = lab.arrived
    assert immediate == Immediate(0, 3, 7, 0, 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(st.data())
def test_a_spoilt_frame_ends_its_connection_and_touches_nothing(
    lab: Lab, data: st.DataObject
) -> None:
    before = lab.count("bad_frames")
    writer = lab.writer(link=secrets.token_bytes(4))
    head = bytearray(writer.head([(0, 8), (64, 8)]))
    bit = data.draw(st.integers(0, 8 * len(head) - 1))
    head[bit // 8] ^= 1 << bit % 8
    # Enough for a table of any size that a spoilt head may announce.
    writer.push(bytes(head) + b"\xff" * (16 * MAX_FRAGMENTS))
    assert writer.is_ended()
    assert lab.count("bad_frames") == before + 1
    lab.check_untouched()


def test_a_replayed_frame_ends_its_connection(lab: Lab) -> None:
    writer = lab.writer()
    frame = writer.head([(0, 4)]) + b"once"
    writer.sock.sendall(frame)
    assert writer.fence() == Refusal.NONE
    writer.sock.sendall(frame.replace(b"once", b"more"))
    assert writer.is_ended()
    assert lab.memory[:4] == b"once"
    assert len(lab.arrived) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.integers(0, 99))
def test_a_truncated_frame_delivers_nothing(lab: Lab, length: int) -> None:
    writer = lab.writer(link=secrets.token_bytes(4))
    frame = writer.head([(0, 8), (64, 8)]) + b"\x01" * 16
    writer.push(frame[: min(length, len(frame) - 1)], is_last=True)
    assert writer.is_ended()
    lab.check_untouched()


def test_a_frame_that_stops_halfway_is_given_up() -> None:
    lab = Lab(patience_s=0.05)
    writer = lab.writer()
    writer.sock.sendall(writer.head([(0, 8)]) + b"half")
    assert writer.is_ended()
    assert lab.arrived == []
    lab.close()


def test_an_answer_from_a_writer_is_not_believed(lab: Lab) -> None:
    writer = lab.writer()
    writer.sock.sendall(writer.codec.pack(Frame(kind=Kind.FENCE_READ, imm=0, write=0)))
    assert writer.is_ended()


# -- grants -------------------------------------------------------------------------------


def test_what_is_not_granted_is_read_away_counted_and_told_by_the_fence(lab: Lab) -> None:
    writer = lab.writer()
    big = 300_000
    end = LAYOUT.num_bytes
    writer.write([(0, 8)], b"\xff" * 8, imm=1)
    writer.write([(end - 4, 8)], b"\xff" * 8, write=1)
    writer.write([(end * 9, big)], b"\xff" * big, write=2)
    writer.write([(0, 8)], b"\xff" * 8, region=1, write=3)
    lab.check_untouched()
    assert writer.fence(1) == Refusal.NOT_GRANTED
    assert writer.fence(0, number=1) in (Refusal.OUTSIDE, Refusal.NOT_GRANTED)
    assert writer.fence(0, number=2) == Refusal.NONE  # told once
    lab.check_untouched()
    assert lab.count("refused_frames") == 4
    assert lab.count("refused_bytes") == big + 24
    lab.check_serves()


def test_another_rank_cannot_write_into_a_granted_session(lab: Lab) -> None:
    writer = lab.writer(owner="prefill.2", rank=2)
    writer.write([(0, 8)], b"\xff" * 8)
    assert writer.fence() == Refusal.STRANGER
    lab.check_untouched()


def test_what_is_remembered_of_refusals_is_bounded(lab: Lab) -> None:
    writer = lab.writer()
    for n in range(MAX_REFUSALS + 1):
        writer.write([(0, 1)], b"x", imm=10 + n)
    assert writer.fence(10) == Refusal.NONE
    assert writer.fence(11, number=1) == Refusal.NOT_GRANTED


def test_a_grant_taken_back_in_the_middle_of_a_frame_ends_it(lab: Lab) -> None:
    writer = lab.writer()
    writer.sock.sendall(writer.head([(0, 64)]) + b"\xff" * 32)
    wait_until(lambda: lab.memory[31] == 0xFF, "the first half is there")
    lab.grants.revoke(0)
    lab.memory[:] = b"\x01" * len(lab.memory)  # the blocks have a new owner
    assert writer.is_ended()
    writer.push(b"\xff" * 32)
    lab.check_untouched()
    lab.grant(0)
    lab.check_serves()


def test_closing_ends_every_connection_whatever_it_is_doing(lab: Lab) -> None:
    silent, idle, halfway = lab.connect(), lab.writer(), lab.writer()
    halfway.sock.sendall(halfway.head([(0, 64)]) + b"\xff" * 32)
    lab.receiver.close()
    lab.receiver.close()
    assert [writer.is_ended() for writer in (silent, idle, halfway)] == [True] * 3


def test_a_host_that_is_not_this_machine_is_one_clear_line() -> None:
    receiver = Receiver(
        host="192.0.2.1",
        key=KEY,
        generation=1,
        grants=Grants(),
        deliver=lambda _: None,
        handshake_s=1,
        patience_s=1,
    )
    with pytest.raises(ConfigError, match=r"host '192\.0\.2\.1': cannot listen there: .* address"):
        receiver.open()
    receiver.close()


def test_bytes_go_where_the_table_says(lab: Lab) -> None:
    rng = np.random.default_rng(3)
    homes = (rng.permutation(LAYOUT.num_bytes // 16)[:200] * 16).tolist()
    payload = rng.integers(0, 256, 200 * 16, np.uint8).tobytes()
    writer = lab.writer()
    writer.write([(home, 16) for home in homes], payload)
    assert writer.fence() == Refusal.NONE
    for index, home in enumerate(homes):
        assert lab.memory[home : home + 16] == payload[16 * index : 16 * index + 16]
