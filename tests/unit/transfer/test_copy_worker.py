"""The parts of the worker that only bad luck reaches; the rest is in the conformance tests."""

import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import TransferError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import RegionDescriptor
from headrace.core.transport import CancelToken, Immediate
from headrace.transfer.completion import Outcome
from headrace.transfer.copy import copy_fragments
from headrace.transfer.copy_worker import CopyWorker, Forget
from headrace.transfer.shm import ShmTransport
from tests.support.transfer_layouts import split_layouts
from tests.support.transfer_world import KEY, PATIENCE_S, fragments, wait_readable


def make_transport(run_dir: Path, owner: str, *, patience_s: float = PATIENCE_S) -> ShmTransport:
    return ShmTransport(
        deployment_id=f"test-{run_dir.name}",
        owner=owner,
        rank=0,
        generation=1,
        run_dir=run_dir,
        key=KEY,
        patience_s=patience_s,
    )


def layout() -> CacheLayout:
    return split_layouts(1)[0]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ShmTransport]:
    receiver = make_transport(tmp_path, "decode.0")
    receiver.open()
    yield receiver
    receiver.close()


def write_many(
    sender: ShmTransport,
    receiver: ShmTransport,
    number: int,
) -> list[Outcome]:
    _, target = receiver.allocate(layout())
    return write_to(sender, target, number)


def write_to(sender: ShmTransport, target: RegionDescriptor, number: int) -> list[Outcome]:
    source = memoryview(np.ones(64, np.uint8))
    return [
        sender.write(
            source,
            target,
            fragments((0, n, 1)),
            immediate=Immediate(5, 0, 1, n, 1),
            token=CancelToken(),
        )
        for n in range(number)
    ]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write rings for itself, so that a few of them fill a doorbell."""
    monkeypatch.setattr("headrace.transfer.copy_worker.RING_S", -1.0)


@pytest.mark.usefixtures("hasty")
def test_a_slow_receiver_loses_nothing(tmp_path: Path, receiver: ShmTransport) -> None:
    # Far more writes than a socket queues: they wait at the sender and travel together.
    sender = make_transport(tmp_path, "prefill.0")
    sender.open()
    completions = write_many(sender, receiver, 2000)
    came: list[Immediate] = []
    while len(came) < 2000:
        assert wait_readable(receiver.fileno())
        came += receiver.poll()
    assert [one.write_number for one in came] == list(range(2000))
    while not all(one.is_done() for one in completions):
        assert wait_readable(sender.fileno())
        sender.poll()
    assert {one.error() for one in completions} == {""}
    sender.close()


@pytest.mark.usefixtures("hasty")
def test_a_receiver_that_never_drains_fails_the_writes_by_name(
    tmp_path: Path, receiver: ShmTransport
) -> None:
    sender = make_transport(tmp_path, "prefill.0", patience_s=0.02)
    sender.open()
    completions = write_many(sender, receiver, 1000)
    while not all(one.is_done() for one in completions):
        assert wait_readable(sender.fileno())
        sender.poll()
    errors = [one.error() for one in completions if one.error()]
    assert errors
    assert all("decode.0.1.bell was full for 0.02 s" in error for error in errors)
    delivered = {one.write_number for one in receiver.poll()}
    # Success is said of exactly those writes whose immediate is in the receiver's queue.
    assert delivered == {n for n, one in enumerate(completions) if not one.error()}
    assert sender.counters()["headrace_transfer_failed_writes_total"] == len(errors)
    sender.close()


def test_writes_that_wait_for_each_other_ring_together(
    tmp_path: Path, receiver: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.transfer.copy_worker.RING_S", PATIENCE_S)
    may_copy = threading.Event()

    def copy_later(*args: Any) -> None:
        assert may_copy.wait(PATIENCE_S)
        copy_fragments(*args)

    monkeypatch.setattr("headrace.transfer.copy_worker.copy_fragments", copy_later)
    sender = make_transport(tmp_path, "prefill.0")
    sender.open()
    completions = write_many(sender, receiver, 100)
    may_copy.set()
    assert wait_readable(receiver.fileno())
    assert len(receiver.poll()) == 100
    while not all(one.is_done() for one in completions):
        assert wait_readable(sender.fileno())
        sender.poll()
    sender.close()


def test_a_sender_that_looks_after_it_polled_misses_no_completion(
    tmp_path: Path, receiver: ShmTransport
) -> None:
    sender = make_transport(tmp_path, "prefill.0")
    sender.open()
    _, target = receiver.allocate(layout())
    for _ in range(300):
        for done in write_to(sender, target, 2):
            while not done.is_done():
                assert wait_readable(sender.fileno())
                sender.poll()
        receiver.poll()
    sender.close()


def test_closing_ends_every_write(tmp_path: Path, receiver: ShmTransport) -> None:
    sender = make_transport(tmp_path, "prefill.0")
    sender.open()
    completions = write_many(sender, receiver, 500)
    sender.close()
    assert all(one.is_done() for one in completions)
    assert any(one.error() for one in completions)


def test_a_worker_that_does_not_run_refuses_work() -> None:
    worker = CopyWorker(codec=None, own_bell="", patience_s=1.0)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match="not open"):
        worker.put(Forget("x"))
    worker.stop()


def test_a_write_that_breaks_the_copy_reports_and_the_thread_lives(
    tmp_path: Path, receiver: ShmTransport
) -> None:
    sender = make_transport(tmp_path, "prefill.0")
    sender.open()
    _, target = receiver.allocate(layout())
    source = memoryview(np.ones(4, np.uint8))
    broken = sender.write(
        source,
        target,
        fragments((0, 0, 9)),  # longer than the source: bounds are the engine's to check
        immediate=Immediate(5, 0, 1, 0, 9),
        token=CancelToken(),
    )
    (good,) = write_many(sender, receiver, 1)
    while not good.is_done():
        assert wait_readable(sender.fileno())
        sender.poll()
    assert broken.is_done()
    assert "ValueError" in broken.error()
    assert good.error() == ""
    sender.close()


def test_an_idle_worker_wakes_nobody(tmp_path: Path, receiver: ShmTransport) -> None:
    assert not select.select([receiver.fileno()], [], [], 0)[0]
