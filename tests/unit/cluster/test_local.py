"""The supervisor: everything up, or one clear error; and nothing left in any case."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.cluster.events import RankExited
from headrace.cluster.local import SupervisorConfig
from headrace.cluster.replica import ReplicaBounds
from headrace.cluster.restarts import RestartConfig
from headrace.cluster.rundir import sweep_stale
from headrace.core.errors import ReplicaError, UserError
from headrace.core.messages import Failed, LoadProgress, Ready, Shutdown, Topology
from tests.support.cluster_deployment import SEGMENTS, deployment, is_running
from tests.support.cluster_waiting import until

NO_RESTARTS = ReplicaBounds(restarts=RestartConfig(max_restarts=0))
START = r"^prefill0\.0 \(.*\), .*, decode0\.1 \(no weights read\) not ready after 0"
NAMES = ["prefill0.0", "prefill0.1", "decode0.0", "decode0.1"]


@pytest.fixture
def base():
    with tempfile.TemporaryDirectory(prefix="hr") as path:
        yield Path(path)


async def test_a_deployment_starts_knows_itself_and_leaves_nothing(base):
    async with deployment(base, grace_s=60.0) as running:
        supervisor, heard = running.supervisor, running.heard
        assert not supervisor.is_ready
        topology = await supervisor.start()
        assert supervisor.is_ready
        assert [f"{r.replica}.{r.info.rank}" for r in supervisor.ready] == NAMES
        assert [replica.name for replica in topology.replicas] == ["prefill0", "decode0"]
        addresses = [rank.address for replica in topology.replicas for rank in replica.ranks]
        assert running.control.sent == [(address, topology) for address in addresses]
        assert len(heard.of(LoadProgress)) == len(heard.of(Ready)) == 4
        while len(heard.messages) < 4:
            heard.has_message.clear()
            await heard.has_message.wait()
        # Each rank got the topology: it reports how many ranks it knows.
        assert [heartbeat.progress for heartbeat in heard.messages] == [4] * 4
        pids = list(supervisor.pids.values())
        assert all(is_running(pid) for pid in pids)
        await supervisor.stop()
        assert not supervisor.is_ready
        assert not any(is_running(pid) for pid in pids)
        assert running.left_behind() == []
        assert [event.exit_code for event in heard.of(RankExited)] == [0] * 4
        assert sorted(heard.lines) == sorted((name, f"{name} starts") for name in NAMES)
        await supervisor.stop()


async def test_a_persons_mistake_is_passed_on_word_for_word(base):
    async with deployment(base, prefill="obey,refuse") as running:
        with pytest.raises(UserError, match=r"^refuse: expected a model, came stub:obey,refuse$"):
            await running.supervisor.start()
        assert len(running.heard.of(Failed)) == 1
        assert running.left_behind() == []
        assert running.supervisor.pids == {}


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fail", r"^decode0\.1 failed: fail: expected a model"),
        ("crash", r"^decode0\.1 ended with exit code 3 before it was ready; .*: out of patience$"),
        ("vanish", r"^decode0\.1 was ended by SIGKILL before it was ready"),
    ],
)
async def test_a_rank_that_cannot_start_is_named(base, behaviour, message):
    async with deployment(base, decode=f"obey,{behaviour}") as running:
        with pytest.raises(ReplicaError, match=message):
            await running.supervisor.start()
        assert running.left_behind() == []
        assert running.supervisor.pids == {}


async def test_ranks_not_ready_in_time_are_named_with_how_far_they_are(base):
    bounds = {"start_timeout_s": 0.2, "grace_s": 0.5}
    async with deployment(base, prefill="hang", decode="hang", **bounds) as running:
        with pytest.raises(ReplicaError, match=START):
            await running.supervisor.start()
        assert running.left_behind() == []
        assert running.supervisor.pids == {}


async def test_readiness_of_another_generation_is_refused(base, caplog):
    async with deployment(base, prefill="stale", decode="stale", grace_s=0.5) as running:
        starting = asyncio.create_task(running.supervisor.start())
        while caplog.text.count("of generation 4 says it is ready") < 4:
            await asyncio.sleep(0.01)
        assert running.supervisor.ready == []
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting


def test_a_stop_takes_less_than_five_seconds_by_default():
    config = SupervisorConfig()
    assert config.grace_s + 2 * config.signal_s < 5.0


async def test_a_program_that_does_not_exist_is_a_named_error(base):
    async with deployment(base, command=("/nowhere/python",)) as running:
        with pytest.raises(ReplicaError, match=r"prefill0\.\d|decode0\.\d"):
            await running.supervisor.start()
        assert running.left_behind() == []


async def test_a_rank_that_dies_later_fails_a_deployment_without_restarts_by_name(base):
    async with deployment(base, replica=NO_RESTARTS) as running:
        supervisor = running.supervisor
        await supervisor.start()
        os.kill(supervisor.pids["decode0.0"], signal.SIGKILL)
        error = await supervisor.failure()
        assert str(error).startswith("decode0.0 was ended by SIGKILL")
        assert not supervisor.is_ready
        (ended, *_) = running.heard.of(RankExited)
        assert (ended.name, ended.exit_code) == ("decode0.0", -9)
        assert ended.last_lines == ("decode0.0 starts",)
        await supervisor.stop()
        assert running.left_behind() == []


@pytest.mark.parametrize("behaviour", ["stubborn", "deaf"])
async def test_ranks_that_do_not_listen_are_made_to_leave(base, behaviour):
    bounds = {"grace_s": 0.1, "signal_s": 1.0}
    async with deployment(base, decode=behaviour, **bounds) as running:
        await running.supervisor.start()
        pids = list(running.supervisor.pids.values())
        await running.supervisor.stop()
        until(lambda: not any(is_running(pid) for pid in pids))
        assert running.left_behind() == []
        exits = {event.name: event.exit_code for event in running.heard.of(RankExited)}
        wanted = -signal.SIGTERM if behaviour == "stubborn" else -signal.SIGKILL
        assert exits["decode0.0"] == exits["decode0.1"] == wanted


async def test_a_stopped_rank_is_made_to_leave(base):
    async with deployment(base, grace_s=0.1, signal_s=1.0) as running:
        await running.supervisor.start()
        pid = running.supervisor.pids["prefill0.1"]
        os.kill(pid, signal.SIGSTOP)
        await running.supervisor.stop()
        until(lambda: not is_running(pid))
        assert running.left_behind() == []


async def test_cancelling_a_start_leaves_nothing(base):
    async with deployment(base, decode="hang", grace_s=0.5) as running:
        starting = asyncio.create_task(running.supervisor.start())
        while len(running.heard.of(LoadProgress)) < 4:
            await asyncio.sleep(0.01)
        pids = list(running.supervisor.pids.values())
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not any(is_running(pid) for pid in pids)
        assert running.left_behind() == []


async def test_a_stop_cut_short_still_kills(base):
    async with deployment(base, decode="deaf", grace_s=60.0) as running:
        await running.supervisor.start()
        pids = list(running.supervisor.pids.values())
        stopping = asyncio.create_task(running.supervisor.stop())
        while not any(isinstance(message, Shutdown) for _, message in running.control.sent):
            await asyncio.sleep(0.01)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        until(lambda: not any(is_running(pid) for pid in pids))
        assert running.left_behind() == []


async def test_a_hook_that_raises_ends_the_deployment_with_an_error(base, caplog):
    async with deployment(base) as running:
        running.heard.messages = None
        await running.supervisor.start()
        error = await running.supervisor.failure()
        assert "the supervisor itself failed: AttributeError" in str(error)
        assert "a task of the supervisor failed" in caplog.text


def test_ranks_die_with_a_killed_supervisor_and_the_next_one_sweeps(base):
    code = f"""
import asyncio, sys
sys.path[:0] = {sys.path!r}
from tests.support.cluster_deployment import serve_until_killed
asyncio.run(serve_until_killed({str(base)!r}))
"""
    supervisor = subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE)
    pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert len(pids) == 5
    supervisor.send_signal(signal.SIGKILL)
    supervisor.communicate()
    until(lambda: not any(is_running(pid) for pid in pids))
    (dead,) = base.iterdir()
    assert len(list(SEGMENTS.glob(dead.name + "*"))) == 4
    assert sweep_stale(base) == [dead.name]
    assert list(SEGMENTS.glob(dead.name + "*")) == []


async def test_topology_is_sent_once_to_every_rank(base):
    async with deployment(base) as running:
        await running.supervisor.start()
        topologies = [address for address, m in running.control.sent if isinstance(m, Topology)]
        assert len(topologies) == len(set(topologies)) == 4
