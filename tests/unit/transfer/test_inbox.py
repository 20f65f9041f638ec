import pytest

from headrace.core.errors import TransferError
from headrace.core.transport import Immediate
from headrace.transfer.inbox import MAX_EARLY, Inbox


def write(
    imm: int, number: int, num_bytes: int = 10, *, rank: int = 0, generation: int = 1
) -> Immediate:
    return Immediate(imm, rank, generation, number, num_bytes)


def test_a_repeat_never_counts() -> None:
    inbox = Inbox()
    inbox.expect(0, 20)
    inbox.deliver(write(0, 0))
    inbox.deliver(write(0, 0))
    assert inbox.take()[0] == []
    inbox.deliver(write(0, 1))
    assert inbox.take()[0] == [0]
    assert inbox.dropped == {"repeat": 1}


def test_equal_numbers_of_two_ranks_or_generations_are_two_writes() -> None:
    inbox = Inbox()
    inbox.expect(0, 30)
    for rank, generation in ((0, 1), (1, 1), (0, 2)):
        inbox.deliver(write(0, 0, rank=rank, generation=generation))
    assert inbox.take()[0] == [0]


def test_strangers_and_stale_generations_are_refused_and_counted() -> None:
    inbox = Inbox()
    inbox.expect(0, 10, writers={0: 5})
    inbox.deliver(write(0, 0, generation=4))
    inbox.deliver(write(0, 0, rank=1, generation=5))
    assert inbox.take() == ([], [])
    inbox.deliver(write(0, 0, generation=5))
    assert inbox.take()[0] == [0]
    assert inbox.dropped == {"stale": 2}


def test_what_comes_before_it_is_expected_is_kept() -> None:
    inbox = Inbox()
    inbox.deliver(write(3, 0))
    inbox.deliver(write(3, 0))
    assert inbox.take() == ([], [])
    inbox.expect(3, 10)
    completed, accepted = inbox.take()
    assert completed == [3]
    assert accepted == [write(3, 0)]


def test_what_comes_after_it_is_retired_is_dropped_and_counted() -> None:
    inbox = Inbox()
    inbox.expect(0, 10)
    inbox.retire(0)
    inbox.deliver(write(0, 0))
    assert inbox.take() == ([], [])
    assert inbox.dropped == {"late": 1}


def test_an_id_is_never_expected_twice() -> None:
    inbox = Inbox()
    inbox.expect(4, 10)
    with pytest.raises(TransferError, match="immediate 4 was expected before"):
        inbox.expect(4, 10)
    inbox.retire(4)
    with pytest.raises(TransferError, match="never reused"):
        inbox.expect(4, 10)
    with pytest.raises(TransferError, match="nothing to retire"):
        inbox.retire(4)


def test_an_id_completes_once_even_when_too_much_comes() -> None:
    inbox = Inbox()
    inbox.expect(0, 15)
    for number in range(3):
        inbox.deliver(write(0, number))
    assert inbox.take()[0] == [0]


def test_nothing_expected_is_complete_at_once() -> None:
    inbox = Inbox()
    inbox.expect(0, 0)
    assert inbox.take()[0] == [0]


def test_noise_is_bounded_and_the_newest_is_kept() -> None:
    inbox = Inbox()
    for imm in range(MAX_EARLY + 5):
        inbox.deliver(write(imm, 0))
    assert inbox.dropped == {"early": 5}
    inbox.expect(MAX_EARLY + 4, 10)
    inbox.expect(0, 10)
    assert inbox.take()[0] == [MAX_EARLY + 4]


def test_retired_ids_take_no_memory_when_they_rise() -> None:
    inbox = Inbox()
    for imm in range(1000):
        inbox.expect(imm, 1)
    for imm in reversed(range(1000)):
        inbox.retire(imm)
    assert inbox._retired == set()
    assert inbox.is_retired(999)
    assert not inbox.is_retired(1000)
