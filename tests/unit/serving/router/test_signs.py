"""One rank's signs of life: silence, standing still, and who waits for it."""

import pytest

from headrace.serving.router.choice import Health
from headrace.serving.router.config import RegistryConfig
from headrace.serving.router.signs import RankSigns
from tests.support.serving_fakes import beat

CONFIG = RegistryConfig(late_s=3, dead_s=15, stuck_s=30)


def make() -> RankSigns:
    return RankSigns(generation=1, address="a", heard_s=0.0, moved_s=0.0)


def test_a_rank_that_was_never_heard_is_late_and_in_time_dead() -> None:
    signs = make()
    assert signs.fault(1.0, CONFIG) == "has not been heard yet"
    assert signs.health(15.0, CONFIG) is Health.LATE
    assert signs.health(15.1, CONFIG) is Health.DEAD


@pytest.mark.parametrize(("now_s", "health"), [(3.0, 0), (3.1, 1), (15.0, 1), (15.1, 2)])
def test_silence_makes_late_and_then_dead(now_s: float, health: int) -> None:
    signs = make()
    signs.take(beat("d", 0), 0.0)
    assert signs.health(now_s, CONFIG) == health


@pytest.mark.parametrize("is_known_to_rank", [True, False], ids=["has work", "never arrived"])
def test_progress_is_owed_as_long_as_requests_wait(is_known_to_rank: bool) -> None:
    signs = make()
    signs.take(beat("d", 0), 100.0)
    signs.send(2, 100.0)
    for second in range(101, 132):
        signs.take(beat("d", 0, has_work=is_known_to_rank), float(second))
    assert signs.fault(131.0, CONFIG) == "has made no progress for 31.0 s with requests waiting"
    signs.take(beat("d", 0, has_work=is_known_to_rank, progress=1), 132.0)
    assert signs.health(132.0, CONFIG) is Health.GOOD


def test_standing_still_with_nobody_waiting_is_no_fault() -> None:
    signs = make()
    for second in range(100):
        signs.take(beat("d", 0), float(second))
    signs.send(1, 99.5)
    signs.take(beat("d", 0), 100.0)
    assert signs.fault(100.0, CONFIG) == "", "the wait begins with the request"
    signs.in_flight = 0
    signs.take(beat("d", 0), 200.0)
    assert signs.fault(200.0, CONFIG) == ""


def test_a_fault_says_in_which_step_and_layer_the_rank_was_last_heard() -> None:
    signs = make()
    counters = {"headrace_step": 12.0, "headrace_layer": 3.0}
    signs.take(beat("d", 0, has_work=True, counters=counters), 0.0)
    assert signs.fault(4.0, CONFIG) == "has been silent for 4.0 s, last heard in step 12, layer 3"
    for second in range(1, 32):
        signs.take(beat("d", 0, has_work=True, counters=counters), float(second))
    assert signs.fault(31.0, CONFIG).endswith("requests waiting, last heard in step 12, layer 3")
