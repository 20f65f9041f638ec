"""Runs a coroutine that Ctrl-C, SIGTERM and a closed terminal end in good order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer
import uvloop

T = TypeVar("T")


def run_until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` in an event loop of its own; the first signal cancels it.

    Later signals are ignored: what ``main`` does when cancelled is bounded, and cutting it short
    would leave processes behind.

    Returns:
        What ``main`` returns.

    Raises:
        typer.Exit: A signal came; the code is 128 and its number.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        caught: list[signal.Signals] = []
        try:
            result = runner.run(_cancel_on_signal(main, caught))
        except asyncio.CancelledError:
            if not caught:
                raise
        if caught:
            raise typer.Exit(128 + caught[0])
        return result


async def _cancel_on_signal(main: Coroutine[Any, Any, T], caught: list[signal.Signals]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)

    def on_signal(number: signal.Signals) -> None:
        if not caught:
            task.cancel()
        caught.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    # Who started us with nohup wants us to outlive the terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
