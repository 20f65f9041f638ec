import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.transport import Immediate
from headrace.transfer.doorbell import MAX_RECORDS, Doorbell, RingCodec, Ringer
from tests.support.transfer_world import KEY, wait_readable

CODEC = RingCodec(KEY)


def immediate(number: int = 0) -> Immediate:
    return Immediate(1 << 40, 3, 7, number, 1 << 33)


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Doorbell]:
    bell = Doorbell(tmp_path / "d.1.bell", codec=CODEC, generation=1)
    bell.open()
    yield bell
    bell.close()


@pytest.fixture
def ringer() -> Iterator[Ringer]:
    ringer = Ringer(CODEC)
    ringer.open()
    yield ringer
    ringer.close()


def test_records_arrive_as_they_were_sent(bell: Doorbell, ringer: Ringer, tmp_path: Path) -> None:
    sent = [immediate(n) for n in range(MAX_RECORDS)]
    assert ringer.ring(str(tmp_path / "d.1.bell"), sent, generation=1)
    assert wait_readable(bell.fileno())
    assert bell.drain() == sent
    assert bell.drain() == []


def test_waking_makes_readable_and_delivers_nothing(
    bell: Doorbell, ringer: Ringer, tmp_path: Path
) -> None:
    ringer.wake(str(tmp_path / "d.1.bell"))
    assert wait_readable(bell.fileno())
    assert bell.drain() == []
    assert not bell.dropped


@pytest.mark.parametrize("fault", ["key", "generation", "bit", "short", "noise"])
def test_a_forged_or_stale_datagram_is_dropped_and_counted(
    bell: Doorbell, tmp_path: Path, fault: str
) -> None:
    good = CODEC.pack([immediate()], generation=1)
    bad = {
        "key": RingCodec(b"another deployment").pack([immediate()], generation=1),
        "generation": CODEC.pack([immediate()], generation=2),
        "bit": good[:-1] + bytes([good[-1] ^ 1]),
        "short": good[:-1],
        "noise": b"x",
    }[fault]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(bad, str(tmp_path / "d.1.bell"))
        stranger.sendto(good, str(tmp_path / "d.1.bell"))
    assert bell.drain() == [immediate()]
    assert bell.dropped["forged"] == 1


def test_a_full_queue_refuses_and_takes_again_when_drained(
    bell: Doorbell, ringer: Ringer, tmp_path: Path
) -> None:
    path = str(tmp_path / "d.1.bell")
    taken = 0
    while ringer.ring(path, [immediate(taken)], generation=1):
        taken += 1
    ringer.wake(path)  # full is readable already: no error, no wait
    assert [one.write_number for one in bell.drain()] == list(range(taken))
    assert ringer.ring(path, [immediate()], generation=1)


def test_ringing_where_nobody_listens_is_an_error(
    bell: Doorbell, ringer: Ringer, tmp_path: Path
) -> None:
    bell.close()
    with pytest.raises(FileNotFoundError):
        ringer.ring(str(tmp_path / "d.1.bell"), [immediate()], generation=1)


def test_a_path_too_long_for_a_socket_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 108)
    with pytest.raises(ConfigError, match=r"takes 107; choose a shorter run folder"):
        Doorbell(path, codec=CODEC, generation=1).open()


def test_a_path_that_is_taken_is_refused(bell: Doorbell, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot bind"):
        Doorbell(tmp_path / "d.1.bell", codec=CODEC, generation=1).open()


def test_closing_leaves_no_file(bell: Doorbell, tmp_path: Path) -> None:
    bell.close()
    bell.close()
    assert os.listdir(tmp_path) == []
