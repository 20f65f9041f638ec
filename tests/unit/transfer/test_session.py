import math

import pytest

from headrace.core.errors import SessionError, TransferError
from headrace.transfer.session import MAX_TIMEOUTS
from headrace.transfer.session_state import Complete, Failed, Quarantined, Quiet
from tests.support.transfer_sessions import TIMEOUT_S, Receiver


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_a_session_completes_when_every_rank_has_delivered_what_it_owes(
    receiver: Receiver,
) -> None:
    imm = receiver.open("s", {0: 100, 1: 50, 2: 0})
    receiver.arrive(imm, 0, 60)
    receiver.arrive(imm, 1, 50)
    assert receiver.sessions.take_events() == []
    receiver.arrive(imm, 0, 40)
    assert receiver.sessions.take_events() == [Complete("s", 150)]
    assert len(receiver.sessions) == 0
    receiver.arrive(imm, 0, 40)
    assert receiver.inbox.dropped == {"late": 1}
    assert receiver.sessions.take_events() == []


def test_a_rank_that_sends_too_much_fails_the_session_even_if_the_sum_is_right(
    receiver: Receiver,
) -> None:
    imm = receiver.open("s", {0: 100, 1: 50})
    receiver.arrive(imm, 0, 150)
    (event,) = receiver.sessions.take_events()
    assert isinstance(event, Failed)
    assert event.rank == 0
    assert "sent more than its 100 bytes" in event.reason


def test_a_lost_push_ends_the_session_inside_the_deadline_and_names_the_rank(
    receiver: Receiver,
) -> None:
    imm = receiver.open("s", {0: 100, 1: 65_536})
    receiver.arrive(imm, 0, 100, now_s=3.0)
    receiver.sessions.tick(3.0 + TIMEOUT_S - 0.01)
    assert receiver.sessions.take_events() == []
    assert receiver.sessions.next_deadline_s() == 3.0 + TIMEOUT_S
    receiver.sessions.tick(3.0 + TIMEOUT_S)
    (event,) = receiver.sessions.take_events()
    assert event == Failed(
        "s",
        "prefill rank prefill-0.1 (generation 101) made no progress for 10.0 s; "
        "it delivered 0 of 65536 bytes",
        1,
        is_deadline=True,
    )
    receiver.quiet("s", 0)
    assert receiver.sessions.take_events() == []
    receiver.quiet("s", 1)
    assert receiver.sessions.take_events() == [Quiet("s")]


def test_what_fails_says_where_its_rank_was_last_heard(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    receiver.beat(0, 5, now_s=1.0, where="step 11, layer 2")
    receiver.beat(0, 5, now_s=2.0, where="step 12, layer 3")
    receiver.failed("s", 0)
    (event,) = receiver.sessions.take_events()
    assert isinstance(event, Failed)
    assert event.reason.endswith("0 of 100 bytes, last heard in step 12, layer 3")
    assert not event.is_deadline


def test_what_waits_is_told_with_what_each_rank_owes(receiver: Receiver) -> None:
    imm = receiver.open("s", {0: 100, 1: 50}, now_s=1.0)
    receiver.arrive(imm, 1, 30)
    (wait,) = receiver.sessions.waits(4.0)
    assert (wait.session_id, wait.replica, wait.waited_s) == ("s", "prefill-0", 3.0)
    assert wait.missing_bytes == {0: 100, 1: 20}
    receiver.arrive(imm, 0, 100)
    receiver.arrive(imm, 1, 20)
    assert receiver.sessions.waits(5.0) == []


def test_ignored_messages_are_counted_under_names_that_are_always_there(
    receiver: Receiver,
) -> None:
    before = receiver.sessions.counters()
    receiver.quiet("never", 0)
    after = receiver.sessions.counters()
    assert before.keys() == after.keys()
    assert {n for n in after if after[n] != before[n]} == {
        "headrace_session_messages_ignored_ended_total"
    }


def test_work_on_other_requests_extends_the_wait_only_while_ours_may_be_queued(
    receiver: Receiver,
) -> None:
    imm = receiver.open("s", {0: 100, 1: 100})
    receiver.beat(0, 5, now_s=1.0)  # the first only says where counting starts
    receiver.beat(0, 6, now_s=9.0)
    assert receiver.sessions.next_deadline_s() == 19.0
    receiver.beat(0, 6, now_s=12.0)  # alive, but not working
    assert receiver.sessions.next_deadline_s() == 19.0
    receiver.arrive(imm, 0, 100, now_s=13.0)  # rank 0 is through, so the computing is over
    receiver.beat(1, 1, now_s=14.0)
    receiver.beat(1, 9, now_s=15.0)
    assert receiver.sessions.next_deadline_s() == 23.0


def test_sessions_expire_each_at_its_own_time_whatever_the_others_do(receiver: Receiver) -> None:
    """One that is renewed must not hide those behind it."""
    renewed = receiver.open("A", {0: 100}, now_s=0.0)
    receiver.open("B", {0: 100}, now_s=1.0)
    receiver.open("C", {0: 100}, now_s=2.0)
    failed, freed = [], []
    for now_s in (9.0, 10.0, 10.9, 11.0, 11.9, 12.0, 18.9):
        if now_s == 9.0:
            receiver.arrive(renewed, 0, 50, now_s=now_s)
        receiver.sessions.tick(now_s)
        failed += [(one.session_id, now_s) for one in receiver.sessions.take_events()]
        for session_id, _ in failed:
            receiver.quiet(session_id, 0)
        freed += [(one.session_id, now_s) for one in receiver.sessions.take_events()]
    assert failed == freed == [("B", 11.0), ("C", 12.0)]
    assert len(receiver.sessions) == 1
    receiver.arrive(renewed, 0, 50, now_s=18.9)
    assert receiver.sessions.take_events() == [Complete("A", 100)]


def test_after_the_last_chunk_only_bytes_are_progress(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    receiver.sessions.on_done("s", now_s=2.0)
    receiver.beat(0, 1, now_s=3.0)
    receiver.beat(0, 2, now_s=4.0)
    assert receiver.sessions.next_deadline_s() == 12.0


def test_a_request_that_was_lost_is_not_waited_for_forever(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    for beat in range(10 * MAX_TIMEOUTS):
        receiver.beat(0, beat, now_s=beat * TIMEOUT_S / 2)
        receiver.sessions.tick(beat * TIMEOUT_S / 2)
    events = receiver.sessions.take_events()
    assert isinstance(events[0], Failed)


def test_a_heartbeat_of_another_generation_is_refused(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    for progress in (1, 2):
        receiver.beat(0, progress, now_s=5.0, generation=7)
    assert receiver.sessions.next_deadline_s() == TIMEOUT_S
    assert receiver.sessions.ignored["stale"] == 2


def test_cancelling_waits_for_every_rank(receiver: Receiver) -> None:
    imm = receiver.open("s", {0: 100, 1: 100})
    receiver.sessions.cancel("s", now_s=1.0)
    receiver.quiet("s", 0)
    receiver.arrive(imm, 1, 100)  # a write that was under way drains
    assert receiver.sessions.take_events() == []
    receiver.quiet("s", 1, generation=55)  # not the generation we asked
    assert receiver.sessions.take_events() == []
    receiver.quiet("s", 1)
    assert receiver.sessions.take_events() == [Quiet("s")]
    assert len(receiver.sessions) == 0


def test_cancelling_what_is_over_or_unknown_does_nothing(receiver: Receiver) -> None:
    imm = receiver.open("s", {0: 1})
    receiver.arrive(imm, 0, 1)
    receiver.sessions.take_events()
    receiver.sessions.cancel("s", now_s=0.0)
    receiver.sessions.cancel("never", now_s=0.0)
    receiver.quiet("s", 0)
    assert receiver.sessions.take_events() == []
    assert receiver.sessions.ignored["ended"] == 1


def test_writers_that_cannot_be_heard_keep_the_blocks_until_they_are_known_dead(
    receiver: Receiver,
) -> None:
    receiver.open("s", {0: 100, 1: 100})
    receiver.sessions.cancel("s", now_s=0.0)
    receiver.quiet("s", 0)
    receiver.sessions.tick(TIMEOUT_S)
    assert receiver.sessions.take_events() == [Quarantined("s", (1,))]
    receiver.sessions.tick(1e9)
    assert receiver.sessions.take_events() == []
    assert receiver.sessions.next_deadline_s() == math.inf
    receiver.die(1)
    assert receiver.sessions.take_events() == [Quiet("s")]


def test_quarantine_ends_too_when_the_rank_speaks_at_last(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    receiver.sessions.cancel("s", now_s=0.0)
    receiver.sessions.tick(TIMEOUT_S)
    receiver.quiet("s", 0)
    assert receiver.sessions.take_events() == [Quarantined("s", (0,)), Quiet("s")]


def test_a_rank_that_fails_is_named_with_its_reason(receiver: Receiver) -> None:
    receiver.open("s", {0: 100, 1: 100})
    receiver.failed("s", 1, "doorbell was full")
    (event,) = receiver.sessions.take_events()
    assert isinstance(event, Failed)
    assert event.rank == 1
    assert "prefill-0.1" in event.reason
    assert "doorbell was full" in event.reason


def test_a_second_failure_is_not_told_again(receiver: Receiver) -> None:
    receiver.open("s", {0: 100, 1: 100})
    receiver.failed("s", 1)
    receiver.failed("s", 0)
    receiver.sessions.cancel("s", now_s=0.0)
    assert len(receiver.sessions.take_events()) == 1


def test_a_dead_rank_fails_what_it_owes_and_counts_as_quiet(receiver: Receiver) -> None:
    receiver.open("s", {0: 100, 1: 100})
    receiver.die(0)
    (event,) = receiver.sessions.take_events()
    assert isinstance(event, Failed)
    assert "generation 100) died" in event.reason
    receiver.quiet("s", 1)
    assert receiver.sessions.take_events() == [Quiet("s")]


def test_a_rank_that_dies_after_its_part_fails_nothing(receiver: Receiver) -> None:
    imm = receiver.open("s", {0: 100, 1: 100})
    receiver.arrive(imm, 0, 100)
    receiver.die(0)
    assert receiver.sessions.take_events() == []
    receiver.arrive(imm, 1, 100)
    assert receiver.sessions.take_events() == [Complete("s", 200)]


def test_a_session_with_a_rank_known_dead_fails_at_once(receiver: Receiver) -> None:
    receiver.die(0)
    receiver.open("s", {0: 100})
    failed, quiet = receiver.sessions.take_events()
    assert isinstance(failed, Failed)
    assert quiet == Quiet("s")


def test_a_rank_that_stops_short_without_being_asked_fails_the_session(
    receiver: Receiver,
) -> None:
    receiver.open("s", {0: 100})
    receiver.quiet("s", 0)
    failed, quiet = receiver.sessions.take_events()
    assert isinstance(failed, Failed)
    assert "stopped" in failed.reason
    assert quiet == Quiet("s")


def test_messages_from_ranks_that_are_no_writers_change_nothing(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    receiver.failed("s", 9)
    receiver.quiet("s", 9)
    assert receiver.sessions.take_events() == []
    assert receiver.sessions.ignored["stale"] == 2


def test_sessions_that_cannot_be_are_refused(receiver: Receiver) -> None:
    receiver.open("s", {0: 100})
    with pytest.raises(SessionError, match="open already"):
        receiver.open("s", {0: 100})
    with pytest.raises(SessionError, match="no rank owes a byte"):
        receiver.open("t", {0: 0})
    with pytest.raises(SessionError, match=r"ranks \[0, 1\] but bytes of ranks \[0\]"):
        receiver.sessions.open(
            "u",
            imm=77,
            replica="p",
            generations={0: 1, 1: 1},
            expected_bytes={0: 1},
            now_s=0.0,
            timeout_s=1.0,
        )
    with pytest.raises(TransferError, match="never reused"):
        receiver.sessions.open(
            "v",
            imm=0,
            replica="p",
            generations={0: 1},
            expected_bytes={0: 1},
            now_s=0.0,
            timeout_s=1.0,
        )
    assert len(receiver.sessions) == 1


def test_a_live_session_can_be_looked_at(receiver: Receiver) -> None:
    imm = receiver.open("s", {0: 100, 1: 20})
    receiver.arrive(imm, 0, 30)
    session = receiver.sessions.get("s")
    assert session is not None
    assert (session.received_bytes, session.expected_bytes) == (30, 120)
    assert receiver.sessions.get("t") is None
