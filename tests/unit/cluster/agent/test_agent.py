"""The agent's door: who proves the key comes in, and strangers cost little."""

import asyncio
import socket
from pathlib import Path

import pytest

from headrace.cluster.agent.agent import AgentConfig
from headrace.cluster.agent.orders import Spawn, Spawned
from headrace.cluster.agent.wire import WrongKeyError, hang_up
from headrace.core.errors import ConfigError
from tests.support.cluster_agents import (
    PATIENCE_S,
    connected,
    opened,
    rank_spec,
    report,
    running_agent,
)
from tests.support.cluster_deployment import is_running


async def ends(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()


async def test_closing_ends_every_rank_and_leaves_nothing(base: Path) -> None:
    async with running_agent(base) as agent, opened(agent.port) as wire:
        wire.send(Spawn(number=1, spec=rank_spec("deaf")))
        pid = (await report(wire, Spawned)).pid
        await agent.agent.close()
        await agent.agent.close()
        assert not is_running(pid)
        assert agent.run_dirs() == []
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.2", agent.port)


async def test_another_key_does_not_open_and_a_right_one_still_does(base: Path) -> None:
    async with running_agent(base) as agent:
        with pytest.raises(WrongKeyError):
            async with connected(agent.port, secret=bytes(32)):
                pass
        async with opened(agent.port):
            assert len(agent.run_dirs()) == 1


async def test_who_proves_nothing_in_time_is_hung_up_on(base: Path) -> None:
    config = AgentConfig(handshake_s=0.05)
    async with running_agent(base, config=config) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.2", agent.port)
        await ends(reader)
        await hang_up(writer)


async def test_strangers_are_bounded_and_room_comes_back(base: Path) -> None:
    config = AgentConfig(max_strangers=2)
    async with running_agent(base, config=config) as agent:
        held = [await asyncio.open_connection("127.0.0.2", agent.port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"HRAG")
        reader, writer = await asyncio.open_connection("127.0.0.2", agent.port)
        await ends(reader)
        for _, one in [*held, (reader, writer)]:
            await hang_up(one)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    async with opened(agent.port):
                        break
                except ConnectionError:
                    continue


async def test_an_address_that_cannot_be_had_is_one_clear_line(base: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen on .*give an address of this host"):
            async with running_agent(base, port=taken.getsockname()[1]):
                pass
