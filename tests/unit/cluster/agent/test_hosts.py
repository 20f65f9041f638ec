from pathlib import Path

import pytest

from headrace.cluster.agent.hosts import Hosts
from headrace.core.errors import ConfigError
from tests.support.cluster_agents import rank_spec, remote_host, running_agent, until


async def test_a_rank_lies_where_its_replica_does(base: Path) -> None:
    async with running_agent(base) as agent:
        host = remote_host(agent.port)
        hosts = Hosts({"b": host}, {"prefill0": "b"})
        await hosts.open()
        assert hosts.of(rank_spec()) is host
        assert Hosts().of(rank_spec()) is None
        await hosts.close()
        await until(lambda: not agent.run_dirs())


async def test_when_one_host_refuses_none_is_left_open(base: Path) -> None:
    async with running_agent(base) as agent:
        hosts = Hosts(
            {"b": remote_host(agent.port), "c": remote_host(agent.port, secret=bytes(32))}
        )
        with pytest.raises(ConfigError, match="another key"):
            await hosts.open()
        await until(lambda: not agent.run_dirs())
