import select
import threading
from collections.abc import Iterator

import pytest

from headrace.core.clock import SystemClock
from headrace.transfer.alarm import Alarm
from tests.support.transfer_world import wait_readable

FAR_S = 1e6


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm(SystemClock())
    alarm.open()
    yield alarm
    alarm.close()


def is_ringing(alarm: Alarm) -> bool:
    return bool(select.select([alarm.fileno()], [], [], 0)[0])


def test_it_rings_once_its_time_has_come_and_falls_quiet_when_told(alarm: Alarm) -> None:
    alarm.set(SystemClock().now_s() + 0.01)
    assert wait_readable(alarm.fileno())
    alarm.quiet()
    assert not is_ringing(alarm)
    alarm.quiet()


def test_a_later_time_does_not_put_off_an_earlier_one(alarm: Alarm) -> None:
    alarm.set(SystemClock().now_s() + 0.01)
    alarm.set(SystemClock().now_s() + FAR_S)
    assert wait_readable(alarm.fileno())


def test_an_earlier_time_is_not_put_off_by_a_later_one(alarm: Alarm) -> None:
    alarm.set(SystemClock().now_s() + FAR_S)
    assert not is_ringing(alarm)
    alarm.set(SystemClock().now_s())
    assert wait_readable(alarm.fileno())


def test_it_rings_at_once_when_asked(alarm: Alarm) -> None:
    alarm.ring()
    assert is_ringing(alarm)


def test_closing_ends_its_thread_while_a_time_is_set_and_twice_is_once() -> None:
    before = threading.active_count()
    alarm = Alarm(SystemClock())
    alarm.open()
    alarm.set(SystemClock().now_s() + FAR_S)
    alarm.close()
    alarm.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="not open"):
        alarm.fileno()
