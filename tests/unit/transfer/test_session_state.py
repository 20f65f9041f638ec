from headrace.transfer.session_state import ReceiveSession, Writer


def make_session(**writers: tuple[int, int]) -> ReceiveSession:
    return ReceiveSession(
        session_id="s",
        imm=0,
        replica="p",
        writers={
            int(rank[1:]): Writer(1, expected, received)
            for rank, (expected, received) in writers.items()
        },
        opened_s=0.0,
        timeout_s=1.0,
        deadline_s=1.0,
    )


def test_sums_are_over_all_writers() -> None:
    session = make_session(r0=(100, 40), r1=(50, 50))
    assert (session.expected_bytes, session.received_bytes) == (150, 90)


def test_the_shortest_rank_is_the_one_that_owes_most_and_the_lowest_of_equals() -> None:
    assert make_session(r0=(100, 90), r1=(100, 20), r2=(100, 20)).shortest()[0] == 1


def test_a_rank_that_has_sent_all_shows_that_computing_is_over() -> None:
    assert make_session(r0=(100, 90), r1=(0, 0)).is_computing()
    assert not make_session(r0=(100, 90), r1=(10, 10)).is_computing()


def test_unheard_ranks_are_those_not_quiet() -> None:
    session = make_session(r0=(1, 0), r1=(1, 0))
    session.writers[0].is_quiet = True
    assert session.unheard() == (1,)
