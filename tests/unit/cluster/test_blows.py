"""Blows fall in order of time, on living ranks that they mean, the same ones for a seed."""

import asyncio
import logging
import signal

import pytest

from headrace.cluster.blows import strike
from headrace.core.chaos import parse_chaos

RANKS = ["prefill0.0", "prefill0.1", "prefill1.0", "prefill1.1", "decode0.0"]


async def blows_of(text: str, alive=lambda: RANKS) -> list[tuple[str, signal.Signals]]:
    fallen: list[tuple[str, signal.Signals]] = []
    await strike(parse_chaos(text), alive=alive, send_signal=lambda *blow: fallen.append(blow))
    return fallen


async def test_each_kind_is_its_signal_and_the_earliest_comes_first() -> None:
    assert await blows_of("stop=decode@2ms,kill=prefill1.1@1ms,lose=0.5") == [
        ("prefill1.1", signal.SIGKILL),
        ("decode0.0", signal.SIGSTOP),
    ]


async def test_no_blow_falls_before_its_time() -> None:
    fallen: list[str] = []
    task = asyncio.create_task(
        strike(
            parse_chaos("kill=decode@0s,kill=prefill@3600s"),
            alive=lambda: RANKS,
            send_signal=lambda rank, _: fallen.append(rank),
        )
    )
    while not fallen:
        await asyncio.sleep(0)
    assert fallen == ["decode0.0"]
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert fallen == ["decode0.0"]


async def test_the_seed_draws_the_rank() -> None:
    text = ",".join(["kill=prefill@0s"] * 8)
    first = await blows_of(f"{text},seed=1")
    assert first == await blows_of(f"{text},seed=1")
    assert first != await blows_of(f"{text},seed=2")
    assert {rank for rank, _ in first} <= set(RANKS[:4])


async def test_a_blow_without_a_living_rank_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        fallen = await blows_of("kill=prefill@0s,kill=decode@0s", alive=lambda: ["decode0.0"])
    assert fallen == [("decode0.0", signal.SIGKILL)]
    assert "kill=prefill found no living rank" in caplog.text
