"""Another host as its supervisor has it: called, lost, called again, and named in every fault."""

import asyncio
import signal
from pathlib import Path

import pytest

from headrace.cluster.agent.wire import hang_up
from headrace.core.errors import ConfigError
from tests.support.cluster_agents import (
    PATIENCE_S,
    rank_spec,
    remote_host,
    running_agent,
    until,
)
from tests.support.cluster_deployment import is_running


async def test_ranks_are_started_signalled_and_swept_there(base: Path) -> None:
    async with running_agent(base) as agent:
        host = remote_host(agent.port)
        await host.open()
        process = host.process(rank_spec())
        await process.spawn()
        assert is_running(process.pid)
        (run_dir,) = agent.run_dirs()
        (run_dir / "prefill0.0.1.ctl").touch()
        process.send_signal(signal.SIGKILL)
        assert (await process.wait()).exit_code == -signal.SIGKILL
        host.sweep(process.spec)
        await until(lambda: not (run_dir / "prefill0.0.1.ctl").exists())
        await host.close()
        await host.close()
        await until(lambda: not agent.run_dirs())


async def test_lines_come_with_the_ranks_name(base: Path) -> None:
    async with running_agent(base) as agent:
        host, lines = remote_host(agent.port), []
        host._on_line = lambda name, line: lines.append((name, line))
        await host.open()
        process = host.process(rank_spec("crash"))
        await process.spawn()
        assert (await process.wait()).exit_code == 3
        assert lines == [("prefill0.0", "prefill0.0 starts"), ("prefill0.0", "out of patience")]
        await host.close()


async def test_a_lost_host_loses_its_ranks_and_takes_new_ones_when_it_is_back(
    base: Path,
) -> None:
    async with running_agent(base) as agent:
        host = remote_host(agent.port)
        await host.open()
        process = host.process(rank_spec("deaf"))
        await process.spawn()
    ended = await asyncio.wait_for(process.wait(), PATIENCE_S)
    assert str(ended).startswith("prefill0.0 is lost: host b (127.0.0.2:")
    waiting = host.process(rank_spec(generation=2))
    starting = asyncio.ensure_future(waiting.spawn())
    async with running_agent(base, port=agent.port):
        await asyncio.wait_for(starting, PATIENCE_S)
        assert is_running(waiting.pid)
        await host.close()
        assert (await waiting.wait()).lost


async def test_a_host_that_stays_away_ends_a_start_with_its_name(base: Path) -> None:
    async with running_agent(base) as agent:
        host = remote_host(agent.port, patience_s=0.05)
        await host.open()
    process = host.process(rank_spec())
    await until(lambda: not host._is_there.is_set())
    with pytest.raises(OSError, match=r"host b \(127\.0\.0\.2:\d+\) is not there: "):
        await process.spawn()
    await host.close()


async def test_a_host_that_falls_silent_is_lost(base: Path) -> None:
    async with running_agent(base, beat_s=PATIENCE_S) as agent:
        host = remote_host(agent.port, silent_s=0.2)
        await host.open()
        process = host.process(rank_spec())
        await process.spawn()
        ended = await asyncio.wait_for(process.wait(), PATIENCE_S)
        assert ended.lost.endswith("silent for 0.2 s")
        await host.close()


async def test_no_agent_another_key_and_a_refusal_are_one_clear_line_each(base: Path) -> None:
    async with running_agent(base) as agent:
        with pytest.raises(ConfigError, match=r"^host b .*: the agent holds another key"):
            await remote_host(agent.port, secret=bytes(32)).open()
        absent = remote_host(agent.port)
        absent._opening.model = "/absent/model"
        try:
            with pytest.raises(ConfigError, match=r"^host b .*: /absent/model: no such folder"):
                await absent.open()
        finally:
            absent._opening.model = ""
    with pytest.raises(ConfigError, match=r"^host b .*no agent answers \(Connection refused\)"):
        await remote_host(agent.port).open()


async def test_something_that_answers_nothing_is_silent(base: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await hang_up(writer)

    server = await asyncio.start_server(say_nothing, "127.0.0.2", 0)
    async with server:
        host = remote_host(server.sockets[0].getsockname()[1], connect_s=0.05)
        with pytest.raises(ConfigError, match=r"no agent answers \(silent for 0\.05 s\)"):
            await host.open()
