"""A loop in another thread: results and errors come back, and nothing outlives it."""

import asyncio
import threading

import pytest

from headrace.cli.loop_thread import LoopThread


async def value() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise LookupError("mine")


def test_results_and_errors_come_back_to_the_caller() -> None:
    with LoopThread() as loop:
        assert loop.run(value()) == "chat-loop"
        with pytest.raises(LookupError, match="mine"):
            loop.run(fail())


def test_leaving_cancels_what_runs_waits_for_its_clean_up_and_ends_the_thread() -> None:
    steps: list[str] = []

    async def live() -> None:
        try:
            steps.append("began")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with LoopThread() as loop:
        life = loop.submit(live())
        loop.run(asyncio.sleep(0))
    assert steps == ["began", "cleaned up"]
    assert life.cancelled()
    assert "chat-loop" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupted_wait_cancels_the_work_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    async def live() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread() as loop:
        real = loop.submit

        def interrupted(work):
            future = real(work)
            monkeypatch.setattr(future, "result", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            return future

        with monkeypatch.context() as patch:
            patch.setattr(loop, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loop.run(live())
        assert ended.wait(10)
