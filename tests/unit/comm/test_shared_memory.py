"""Collectives over shared memory: right for any sizes, and never a silent wait."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.comm import segment as seg
from headrace.comm import shared_memory
from headrace.comm.shared_memory import SharedMemoryGroup
from headrace.core.errors import CollectiveError, ConfigError, ReplicaError
from tests.support.comm_ranks import (
    open_rank,
    run_ranks,
    run_threads,
    segment_name,
    two_ranks,
)

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]


def payload(rank, to, rows, *, dtype, width=3):
    """Bytes that only this pair of ranks has, the same on both sides."""
    generator = torch.Generator().manual_seed(1 + 100 * rank + to)
    whole = torch.randint(0, 2, (rows, width), generator=generator, dtype=torch.int64)
    return (whole * (1 + rank)).to(dtype)


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.view(torch.uint8), right.view(torch.uint8))
    )


def gather_and_check(group, rows, dtype):
    gathered = group.all_gather(payload(group.rank, 0, rows, dtype=dtype))
    wanted = torch.stack([payload(r, 0, rows, dtype=dtype) for r in range(group.size)])
    return same(gathered, wanted)


def exchange_and_check(group, counts, dtype=torch.float32):
    """``counts[a][b]`` rows travel from rank a to rank b."""
    me, ranks = group.rank, range(group.size)
    received = group.all_to_all([payload(me, r, counts[me][r], dtype=dtype) for r in ranks])
    return all(same(received[r], payload(r, me, counts[r][me], dtype=dtype)) for r in ranks)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_all_gather_gives_every_rank_everything_in_any_number_of_rounds(size, rows):
    assert all(run_threads(size, gather_and_check, rows, torch.float32, mailbox_bytes=64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_travels_as_bytes(dtype):
    assert all(run_threads(2, gather_and_check, 7, dtype))
    assert all(run_threads(2, exchange_and_check, [[1, 4], [3, 2]], dtype))


@st.composite
def row_counts(draw):
    size = draw(st.integers(2, 4))
    rows = st.one_of(st.just(0), st.integers(0, 20))
    matrix = st.lists(st.lists(rows, min_size=size, max_size=size), min_size=size, max_size=size)
    return draw(matrix)


@given(counts=row_counts(), mailbox_bytes=st.sampled_from([64, 192, 1 << 16]))
@settings(max_examples=25)
def test_all_to_all_delivers_any_row_counts(counts, mailbox_bytes):
    assert all(run_threads(len(counts), exchange_and_check, counts, mailbox_bytes=mailbox_bytes))


def test_a_scalar_and_a_strided_tensor_are_gathered():
    def work(group):
        word = group.all_gather(torch.tensor(group.rank))
        column = group.all_gather((torch.arange(6).view(2, 3) + group.rank).t())
        return word.tolist(), column[1].tolist()

    assert run_threads(2, work) == [([0, 1], [[1, 4], [2, 5], [3, 6]])] * 2


def test_the_own_part_is_not_copied():
    def work(group):
        parts = [torch.ones(2, 2), torch.ones(2, 2)]
        return group.all_to_all(parts)[group.rank] is parts[group.rank]

    assert run_threads(2, work) == [True, True]


def test_agree_carries_whole_words():
    def work(group):
        return group.agree(2**64 - 1 - group.rank)

    assert run_threads(3, work) == [[2**64 - 1, 2**64 - 2, 2**64 - 3]] * 3


def test_a_long_run_of_mixed_collectives_never_mixes_two_exchanges():
    def work(group):
        wrong = 0
        for step in range(150):
            wrong += group.agree(step * 10 + group.rank) != [step * 10 + r for r in range(3)]
            # One rank races ahead of the others by as much as the protocol lets it.
            gathered = group.all_gather(torch.full((40,), step + 1000 * group.rank))
            wrong += gathered.tolist() != [[step + 1000 * r] * 40 for r in range(3)]
            counts = [[(step + a + b) % 5 for b in range(3)] for a in range(3)]
            wrong += not exchange_and_check(group, counts)
        return wrong

    assert run_threads(3, work, mailbox_bytes=64) == [0, 0, 0]


def test_processes_exchange_like_threads(processes):
    counts = [[(3 * a + 5 * b) % 7 * 50 for b in range(4)] for a in range(4)]
    assert all(run_ranks(processes, 4, gather_and_check, 64, torch.bfloat16, mailbox_bytes=64))
    assert all(run_ranks(processes, 4, exchange_and_check, counts, mailbox_bytes=1024))


def test_no_name_is_left_once_all_ranks_have_joined():
    name = segment_name()
    seen = []

    def work(rank):
        group = open_rank(name, rank, 2)
        group.barrier()
        seen.append((seg.FOLDER / name).exists())
        group.close()

    other = threading.Thread(target=work, args=(1,))
    other.start()
    work(0)
    other.join()
    assert seen == [False, False]


def test_a_rank_that_does_not_come_is_named_with_the_collective():
    message = r"rank 0 of 2: barrier \(exchange 1\): no rank 1 after 0.02 s"
    raises = pytest.raises(CollectiveError, match=message)
    with two_ranks(timeout_s=0.02) as (first, _), raises as raised:
        first.barrier()
    error = raised.value
    assert (error.collective, error.exchange, error.missing) == ("barrier", 1, (1,))
    assert error.waited_s >= 0.02


def test_after_a_timeout_both_sides_are_broken():
    with two_ranks(timeout_s=0.02) as (first, second):
        with pytest.raises(ReplicaError, match="no rank 1"):
            first.agree(1)
        with pytest.raises(ReplicaError, match="broken; open a new generation"):
            first.agree(1)
        second.agree(1)
        with pytest.raises(ReplicaError, match="rank 0 left the group"):
            second.agree(1)


@pytest.mark.parametrize("leave", ["close", "abort"])
def test_a_rank_that_leaves_is_named_at_once(leave):
    with two_ranks() as (first, second):
        getattr(second, leave)()
        with pytest.raises(ReplicaError, match=r"barrier \(exchange 1\): rank 1 left the group"):
            first.barrier()


def test_a_rank_may_leave_right_after_its_last_collective():
    with two_ranks() as (first, second):
        rest = threading.Thread(target=lambda: (second.agree(5), second.close()))
        rest.start()
        assert first.agree(4) == [4, 5]
        rest.join()


def test_those_that_wait_with_us_are_told_from_those_that_left():
    name = segment_name()
    opened = {}

    def work(rank):
        opened[rank] = open_rank(name, rank, 3)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened[2].close()
    message = "rank 2 left the group; rank 1 not here either"
    with pytest.raises(CollectiveError, match=message) as raised:
        opened[0].barrier()
    assert (raised.value.missing, raised.value.because) == ((1, 2), ": rank 2 left the group")
    opened[0].close()
    opened[1].close()


def test_abort_from_another_thread_frees_a_waiting_rank():
    with two_ranks() as (first, _):
        errors = []

        def wait():
            with pytest.raises(ReplicaError) as caught:
                first.barrier()
            errors.append(str(caught.value))

        waiting = threading.Thread(target=wait)
        waiting.start()
        first.abort()
        waiting.join()
        assert "rank 0 itself was told to leave" in errors[0]


def test_different_collectives_at_once_are_an_error_on_both_sides():
    with two_ranks() as (first, second):
        messages = []

        def other():
            with pytest.raises(ReplicaError) as caught:
                second.all_gather(torch.ones(2))
            messages.append(str(caught.value))

        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(ReplicaError, match="rank 1 is in all_gather while rank 0 is in barr"):
            first.barrier()
        thread.join()
        assert "rank 0 is in barrier while rank 1 is in all_gather" in messages[0]


def test_unequal_gathers_are_refused():
    def work(group):
        with pytest.raises(ReplicaError, match=r"unequal tensors, of \[4, 8\] bytes"):
            group.all_gather(torch.ones(1 + group.rank))
        return True

    assert run_threads(2, work) == [True, True]


def test_parts_of_unlike_rows_are_refused_before_anything_is_sent():
    with two_ranks() as (first, _):
        for parts in ([torch.ones(1)], [torch.ones(1, 2), torch.ones(1, 3)]):
            with pytest.raises(ValueError, match="expected 2 parts of one dtype"):
                first.all_to_all(parts)


def test_a_rank_that_never_joins_is_named():
    name = segment_name()
    with pytest.raises(ReplicaError, match="ranks 1, 2 did not join"):
        open_rank(name, 0, 3, join_timeout_s=0.02)
    assert not (seg.FOLDER / name).exists()


def test_a_closed_group_refuses_collectives_and_closes_twice():
    with two_ranks() as (first, _):
        first.close()
        first.close()
        first.abort()
        with pytest.raises(ReplicaError, match="group is closed"):
            first.barrier()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2}, "rank 2 of 2"),
        ({"mailbox_bytes": 100}, "mailbox_bytes=100: expected a multiple of 64"),
        ({"mailbox_bytes": 0}, "mailbox_bytes=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    settings = {"rank": 0, "size": 2, "generation": 1, "timeout_s": 1.0, **changes}
    with pytest.raises(ConfigError, match=message):
        SharedMemoryGroup.open("headrace-test-never", **settings)


def test_machines_with_weaker_memory_order_are_refused(monkeypatch):
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match="aarch64: their flags are plain stores"):
        open_rank(segment_name(), 0, 2)
