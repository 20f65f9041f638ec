"""A link against an owner that answers what the test says."""

import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core.transport import CancelToken, Fragments, Immediate
from headrace.transfer.completion import Outcome
from headrace.transfer.tally import Tally
from headrace.transfer.tcp_frames import MAX_PAYLOAD_BYTES, Kind, Refusal
from headrace.transfer.tcp_handshake import Verdict
from headrace.transfer.tcp_link import Link, LinkConfig
from tests.support.transfer_tcp import RawOwner, wait_until
from tests.support.transfer_world import KEY, PATIENCE_S, fragments


class Lab:
    """A link of two sockets, and its owner. The source is larger than any socket buffer."""

    def __init__(self, *, patience_s: float = PATIENCE_S, key: bytes = KEY) -> None:
        self.owner = RawOwner(key=key)
        self.counts = Tally()
        self.news = threading.Event()
        self.data = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)
        self.link = Link(
            LinkConfig(
                owner="prefill.3",
                rank=3,
                generation=7,
                key=KEY,
                num_sockets=2,
                connect_s=PATIENCE_S,
                patience_s=patience_s,
            ),
            host="127.0.0.1",
            port=self.owner.listener.getsockname()[1],
            target_generation=4,
            counts=self.counts,
            on_news=self.news.set,
        )
        self.link.start()

    def write(
        self, moved: Fragments, *, write: int = 0, token: CancelToken | None = None
    ) -> Outcome:
        return self.link.write(
            memoryview(self.data),
            moved,
            region=0,
            immediate=Immediate(5, 3, 7, write, moved.total_bytes),
            token=token or CancelToken(),
        )

    def close(self) -> None:
        self.link.shut("closed")
        self.link.join()
        self.owner.close()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("headrace-tcp")]


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


def wait_over(outcome: Outcome) -> str:
    wait_until(outcome.is_done, "the outcome")
    return outcome.error()


def test_writes_given_before_the_link_is_up_are_sent(lab: Lab) -> None:
    done = lab.write(fragments((10, 20, 30), (40, 50, 60), (900, 5, 1)))
    lab.owner.accept(2)
    frame, ranges, payload = lab.owner.read_frame(0)
    assert (frame.kind, frame.imm, frame.write, frame.total_bytes) == (Kind.WRITE, 5, 0, 91)
    # At the target the first two touch, at the source as well; the third is alone.
    assert ranges == [(20, 90), (5, 1)] or ranges == [(20, 30), (50, 60), (5, 1)]
    assert payload == lab.data[10:100].tobytes() + lab.data[900:901].tobytes()
    assert wait_over(done) == ""
    assert lab.counts["bytes"] == 91
    assert lab.news.is_set()


def test_a_large_write_is_dealt_to_all_sockets(lab: Lab) -> None:
    lab.owner.accept(2)
    size = MAX_PAYLOAD_BYTES + 1000
    done = lab.write(fragments((0, 0, size)))
    parts = [lab.owner.read_frame(index) for index in (0, 1)]
    assert [ranges for _, ranges, _ in parts] == [
        [(0, MAX_PAYLOAD_BYTES)],
        [(MAX_PAYLOAD_BYTES, 1000)],
    ]
    assert {frame.total_bytes for frame, _, _ in parts} == {size}
    assert b"".join(payload for _, _, payload in parts) == lab.data[:size].tobytes()
    assert wait_over(done) == ""


def test_a_fence_is_over_when_every_socket_has_read_it(lab: Lab) -> None:
    lab.owner.accept(2)
    fence = lab.link.fence(5)
    first, _, _ = lab.owner.read_frame(0)
    second, _, _ = lab.owner.read_frame(1)
    assert first.kind == second.kind == Kind.FENCE
    lab.owner.answer(0, first)
    assert not fence.is_done()
    lab.owner.answer(1, second)
    assert wait_over(fence) == ""


def test_a_fence_tells_what_was_refused_on_any_socket(lab: Lab) -> None:
    lab.owner.accept(2)
    fence = lab.link.fence(5)
    for index, refusal in ((0, Refusal.OUTSIDE), (1, Refusal.NONE)):
        frame, _, _ = lab.owner.read_frame(index)
        lab.owner.answer(index, frame, refusal=refusal)
    assert "refused bytes: they lie outside" in wait_over(fence)


def test_cancelling_keeps_what_has_not_begun_from_being_sent(lab: Lab) -> None:
    lab.owner.accept(2)
    stuck = [lab.write(fragments((0, 0, 60 << 20)), write=n) for n in (0, 1)]
    token = CancelToken()
    late = lab.write(fragments((0, 0, 8)), write=2, token=token)
    token.cancel()
    for _ in range(15):
        for index in (0, 1):
            assert lab.owner.read_frame(index)[0].write in (0, 1)
    assert "cancelled" in wait_over(late)
    assert [wait_over(one) for one in stuck] == ["", ""]
    assert (lab.counts["writes"], lab.counts["failed"]) == (2, 1)


def test_an_owner_that_leaves_ends_everything_with_the_reason(lab: Lab) -> None:
    lab.owner.accept(2)
    stuck, fence = lab.write(fragments((0, 0, 60 << 20))), lab.link.fence(5)
    lab.owner.close()
    assert "connection to 127.0.0.1" in wait_over(stuck)
    assert wait_over(fence) == stuck.error()
    assert lab.link.is_broken()
    assert wait_over(lab.write(fragments((0, 0, 8)))) == stuck.error()
    assert wait_over(lab.link.fence(6)) == stuck.error()


def test_one_broken_socket_breaks_the_link(lab: Lab) -> None:
    lab.owner.accept(2)
    fence = lab.link.fence(5)
    lab.owner.sockets[1].close()
    assert "closed" in wait_over(fence) or "reset" in fence.error()


def test_a_link_that_is_shut_says_so(lab: Lab) -> None:
    lab.owner.accept(2)
    stuck = lab.write(fragments((0, 0, 60 << 20)))
    lab.link.shut("decode.0 is gone")
    assert wait_over(stuck) == "decode.0 is gone"
    wait_until(lambda: not lab.link.is_alive(), "its threads ended")


def test_an_owner_that_is_not_there_is_one_clear_line() -> None:
    lab = Lab()
    lab.close()
    gone = Link(
        lab.link._config,
        host="127.0.0.1",
        port=lab.link._address[1],
        target_generation=4,
        counts=lab.counts,
        on_news=lab.news.set,
    )
    done = gone.fence(1)
    gone.start()
    assert f"connection to 127.0.0.1:{lab.link._address[1]}: Connection refused" in wait_over(done)
    gone.join()


def test_an_owner_of_another_deployment_gets_no_bytes() -> None:
    lab = Lab(key=b"another key")
    done = lab.write(fragments((0, 0, 8)))
    with pytest.raises(AssertionError, match="ended"):
        lab.owner.accept(1)
    assert "does not hold this deployment's key" in wait_over(done)
    lab.close()


def test_a_refused_link_says_why() -> None:
    lab = Lab()
    done = lab.write(fragments((0, 0, 8)))
    lab.owner.accept(1, verdict=Verdict.OTHER_GENERATION)
    assert "other generation" in wait_over(done)
    lab.close()


def test_an_owner_that_never_reads_the_fence_loses_the_link() -> None:
    lab = Lab(patience_s=0.05)
    lab.owner.accept(2)
    assert "a fence was not read within 0.05 s" in wait_over(lab.link.fence(5))
    lab.close()


def test_an_owner_that_stops_reading_loses_the_link() -> None:
    lab = Lab(patience_s=0.05)
    lab.owner.accept(2)
    assert "connection to 127.0.0.1" in wait_over(lab.write(fragments((0, 0, 64 << 20))))
    lab.close()


@pytest.mark.parametrize("noise", [b"\x00" * 68, b"HW\x03\x00" + b"\x00" * 64])
def test_noise_for_an_answer_breaks_the_link(noise: bytes) -> None:
    lab = Lab()
    lab.owner.accept(2)
    fence = lab.link.fence(5)
    lab.owner.sockets[0].sendall(noise)
    assert "data frame" in wait_over(fence)
    lab.close()


def test_an_answer_to_no_fence_breaks_the_link(lab: Lab) -> None:
    lab.owner.accept(2)
    fence = lab.link.fence(5)
    frame, _, _ = lab.owner.read_frame(0)
    for _ in range(2):  # the second socket has yet to answer
        lab.owner.answer(0, frame)
    assert "which is not under way" in wait_over(fence)


def test_a_fence_in_the_queue_is_not_overdue(lab: Lab) -> None:
    lab.owner.accept(2)
    lab.write(fragments((0, 0, 64 << 20)))
    lab.link.fence(5)
    (fence,) = lab.link._fences.values()
    assert fence.due_s == math.inf
