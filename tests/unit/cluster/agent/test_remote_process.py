"""A rank on another host is waited for, signalled and lost like one of this host."""

import asyncio
import signal

import pytest

from headrace.cluster.agent.orders import Signal
from headrace.cluster.agent.remote_process import RemoteProcess
from tests.support.cluster_agents import rank_spec


class Host:
    """A host that is there when the test says so."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.signals: list[tuple[int, int]] = []

    async def spawn(self, process: RemoteProcess) -> None:
        await self.is_there.wait()

    def signal(self, order: Signal) -> None:
        self.signals.append((order.number, order.signal))


async def begun(host: Host) -> tuple[RemoteProcess, asyncio.Task[None]]:
    process = RemoteProcess(rank_spec(), host=host, number=5)
    task = asyncio.ensure_future(process.spawn())
    await asyncio.sleep(0)
    return process, task


async def test_its_life_is_told_by_the_agents_reports() -> None:
    host = Host()
    process, task = await begun(host)
    assert (process.is_alive, process.pid) == (False, 0)
    host.is_there.set()
    while not process.is_alive:
        await asyncio.sleep(0)
    process.on_spawned(42)
    await task
    assert process.pid == 42
    process.send_signal(signal.SIGTERM)
    assert host.signals == [(5, signal.SIGTERM)]
    process.on_exited(3, ("out of patience",))
    process.on_exited(4, ())
    ended = await process.wait()
    assert str(ended) == "prefill0.0 ended with exit code 3; its last line: out of patience"
    assert not process.is_alive
    process.send_signal(signal.SIGKILL)
    assert len(host.signals) == 1


async def test_one_that_waits_for_its_host_is_ended_by_a_signal() -> None:
    process, task = await begun(Host())
    process.send_signal(signal.SIGSTOP)
    assert not task.done()
    process.send_signal(signal.SIGTERM)
    await task
    assert (await process.wait()).exit_code == -signal.SIGTERM


async def test_one_that_the_agent_cannot_start_is_an_error_of_starting() -> None:
    host = Host()
    host.is_there.set()
    process, task = await begun(host)
    process.on_not_spawned("no more processes")
    with pytest.raises(OSError, match="no more processes"):
        await task


async def test_one_whose_host_is_lost_ends_with_the_hosts_name() -> None:
    host = Host()
    host.is_there.set()
    process, task = await begun(host)
    process.on_lost("host b (10.0.0.2:7100): silent for 10 s")
    await task
    ended = await process.wait()
    assert ended.is_signal
    assert str(ended) == "prefill0.0 is lost: host b (10.0.0.2:7100): silent for 10 s"


async def test_giving_up_the_wait_for_its_end_does_not_lose_the_end() -> None:
    process, task = await begun(Host())
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    process.send_signal(signal.SIGKILL)
    await task
    assert (await process.wait()).exit_code == -signal.SIGKILL
