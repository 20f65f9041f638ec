"""A seat believes only the generation that it has."""

from headrace.cluster.seat import Seat
from headrace.core.errors import ReplicaError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import LoadProgress, RankInfo, Ready
from headrace.core.sharding import Role, Sharding


class Alive:
    is_alive = True


def make_seat() -> Seat:
    spec = LaunchSpec(
        deployment_id="d",
        run_dir="/run",
        key="00",
        model="m",
        replica="decode0",
        role=Role.DECODE,
        sharding=Sharding(dp=2),
        rank=1,
        generation=5,
        ranks_on_host=2,
        supervisor="ipc:///run/s",
    )
    return Seat(spec, Alive())


def ready(generation: int) -> Ready:
    info = RankInfo(rank=1, generation=generation, address="ipc:///run/a")
    return Ready(replica="decode0", info=info, num_blocks=4, block_size=16, max_tokens=64)


def test_it_is_ready_under_its_own_generation_only():
    seat = make_seat()
    assert not seat.take_ready(ready(4), 0.0)
    assert not seat.take_ready(ready(6), 0.0)
    assert seat.ready is None
    assert seat.take_ready(ready(5), 1.0)
    assert seat.writing == ready(5).info
    assert seat.can_follow


def test_a_rank_that_left_by_itself_waits_and_one_that_was_told_does_not():
    seat = make_seat()
    seat.take_ready(ready(5), 0.0)
    assert seat.take_left(5)
    assert (seat.writing, seat.ready, seat.is_waiting) == (None, None, True)
    assert seat.can_follow

    told = make_seat()
    told.take_ready(ready(5), 0.0)
    told.move_to(6)
    # Until it says so, its old generation may still write.
    assert told.writing == ready(5).info
    assert not told.can_follow
    assert not told.take_left(5)
    assert told.writing is None
    assert told.spec.generation == 6
    assert told.previous.generation == 5


def test_the_first_account_of_an_end_is_kept():
    seat = make_seat()
    seat.say(ReplicaError("it"))
    seat.say(ReplicaError("them"))
    assert str(seat.word) == "it"
    assert seat.has_word.is_set()


def test_it_says_how_far_its_start_has_come():
    seat = make_seat()
    assert seat.standing == "decode0.1 (no weights read)"
    for done, words in ((0, "0% of its weights"), (37, "37% of its weights"), (100, "weights")):
        seat.loading = LoadProgress(replica="decode0", rank=1, done_bytes=done, total_bytes=100)
        assert seat.standing == f"decode0.1 ({words} read)"
    seat.take_ready(ready(5), 0.0)
    assert seat.standing == "decode0.1"
