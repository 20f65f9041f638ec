"""The first signal cancels in good order; the exit code says which it was."""

import asyncio
import os
import signal

import pytest
import typer

from headrace.cli.signals import run_until_signal


@pytest.fixture(autouse=True)
def _a_terminal_that_can_hang_up():
    # Under nohup the tests themselves would run with the signal ignored.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_without_a_signal_the_result_comes_back() -> None:
    async def work() -> str:
        return "done"

    assert run_until_signal(work()) == "done"


def test_an_error_comes_through() -> None:
    async def work() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_until_signal(work())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_and_the_clean_up_is_not_cut_short_by_another(
    number: signal.Signals,
) -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(typer.Exit) as ended:
        run_until_signal(work())
    assert ended.value.exit_code == 128 + number
    assert done == ["cleaned up"]


def test_work_that_ends_well_after_a_signal_still_says_so() -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    with pytest.raises(typer.Exit) as ended:
        run_until_signal(work())
    assert ended.value.exit_code == 143


def test_a_cancellation_of_its_own_is_no_signal() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())


def test_a_hang_up_that_our_parent_ignores_is_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert run_until_signal(work()) == "done"


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]

    async def work() -> None: ...

    run_until_signal(work())
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before
