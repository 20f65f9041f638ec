"""Runs the same function on every rank of a group, as threads or as processes."""

import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from headrace.comm.group import Group, SingleGroup
from headrace.comm.shared_memory import SharedMemoryGroup

# Far beyond any wait of a passing test: reaching it is a failure, not a pace.
PATIENT_S = 60.0


def segment_name() -> str:
    return f"headrace-test-{os.getpid()}-{secrets.token_hex(4)}"


def open_rank(name: str, rank: int, size: int, **changes: Any) -> SharedMemoryGroup:
    settings = {"generation": 1, "timeout_s": PATIENT_S, **changes}
    return SharedMemoryGroup.open(name, rank=rank, size=size, **settings)


def _run_rank(
    work: Callable[..., Any],
    rank: int,
    *,
    name: str,
    size: int,
    settings: dict[str, Any],
    args: Any,
) -> Any:
    torch.set_num_threads(1)
    group: Group = SingleGroup() if size == 1 else open_rank(name, rank, size, **settings)
    try:
        return work(group, *args)
    finally:
        group.close()


def run_ranks(
    executor: Executor, size: int, work: Callable[..., Any], *args: Any, **settings: Any
) -> list[Any]:
    """Return what ``work(group, *args)`` returned on each rank; re-raise the first error."""
    name = segment_name()
    futures = [
        executor.submit(_run_rank, work, rank, name=name, size=size, settings=settings, args=args)
        for rank in range(size)
    ]
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


def run_threads(size: int, work: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
    with ThreadPoolExecutor(size) as executor:
        return run_ranks(executor, size, work, *args, **settings)


@contextmanager
def rank_processes(size: int) -> Iterator[Executor]:
    """Yield an executor of ``size`` fresh interpreters; work must be importable."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(size, mp_context=context) as executor:
        yield executor


@contextmanager
def two_ranks(**settings: Any) -> Iterator[tuple[SharedMemoryGroup, SharedMemoryGroup]]:
    """Yield both ranks of a group in this thread; they must not wait for each other in it."""
    name = segment_name()
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(open_rank, name, 1, 2, **settings)
        first = open_rank(name, 0, 2, **settings)
        second = other.result()
    try:
        yield first, second
    finally:
        first.close()
        second.close()
