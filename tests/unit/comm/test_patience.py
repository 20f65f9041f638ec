"""A wait yields first, then sleeps, then ends."""

from headrace.comm import patience as module
from headrace.comm.patience import MAX_SLEEP_S, MAX_YIELDS, MIN_SLEEP_S, Patience


class StoppedTime:
    """Time that only passes by sleeping."""

    def __init__(self):
        self.now_s = 1000.0
        self.slept_s = []
        self.num_yields = 0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept_s.append(seconds)
        self.now_s += seconds

    def sched_yield(self):
        self.num_yields += 1


def patient(monkeypatch, timeout_s):
    time = StoppedTime()
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(module, "os", time)
    return Patience(timeout_s), time


def test_a_short_wait_never_sleeps(monkeypatch):
    patience, time = patient(monkeypatch, 1.0)
    for _ in range(MAX_YIELDS):
        assert not patience.is_asleep
        assert patience.pause()
    assert patience.is_asleep
    assert (time.num_yields, time.slept_s) == (MAX_YIELDS, [])


def test_sleeps_grow_and_stay_an_eighth_of_the_wait(monkeypatch):
    patience, time = patient(monkeypatch, 1.0)
    while patience.pause():
        pass
    assert time.slept_s[0] == MIN_SLEEP_S
    assert time.slept_s[-1] == MAX_SLEEP_S
    assert time.slept_s == sorted(time.slept_s)
    waited_s = 0.0
    for slept_s in time.slept_s:
        assert slept_s <= max(MIN_SLEEP_S, waited_s / 8 + 1e-9)
        waited_s += slept_s


def test_a_wait_ends_at_its_deadline(monkeypatch):
    patience, time = patient(monkeypatch, 0.25)
    while patience.pause():
        pass
    assert 0.25 <= sum(time.slept_s) <= 0.25 + 2 * MAX_SLEEP_S


def test_the_time_waited_is_told(monkeypatch):
    patience, time = patient(monkeypatch, 0.25)
    assert patience.waited_s == 0.0
    while patience.pause():
        pass
    assert patience.waited_s == time.now_s - 1000.0
