"""Replicas that lose ranks: re-formed under a new generation, and given up only by name."""

import asyncio
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest

from headrace.cluster.events import ReplicaBack, ReplicaLost
from headrace.cluster.replica import ReplicaBounds
from headrace.cluster.restarts import RestartConfig
from headrace.core.errors import UserError
from headrace.core.messages import Broken, Failed, Ready, Topology
from tests.support.cluster_deployment import Deployment, deployment
from tests.support.cluster_stub import FIRST_GENERATION

FAST = ReplicaBounds(settle_s=0.02, restarts=RestartConfig(min_delay_s=0.02))
BOUND_S = 60.0


@pytest.fixture
def base():
    with tempfile.TemporaryDirectory(prefix="hr") as path:
        yield Path(path)


async def heard(running: Deployment, kind: type, count: int = 1) -> list:
    async with asyncio.timeout(BOUND_S):
        while len(running.heard.of(kind)) < count:
            await asyncio.sleep(0.01)
    return running.heard.of(kind)


def kill(running: Deployment, name: str, number: int = signal.SIGKILL) -> None:
    os.kill(running.supervisor.pids[name], number)


def topologies(running: Deployment) -> list[Topology]:
    return [message for message in running.heard.messages if isinstance(message, Topology)]


def replica_of(topology: Topology, name: str):
    (found,) = [replica for replica in topology.replicas if replica.name == name]
    return found


@pytest.mark.parametrize("lost", ["prefill0.0", "prefill0.1", "decode0.0", "decode0.1"])
async def test_a_killed_rank_is_replaced_and_its_replica_goes_on_under_a_new_generation(base, lost):
    async with deployment(base, replica=FAST) as running:
        before = await running.supervisor.start()
        pids = running.supervisor.pids
        kill(running, lost)
        (back,) = await heard(running, ReplicaBack)
        name, rank = lost.split(".")
        assert (back.replica, back.generation) == (name, FIRST_GENERATION + 1)
        (event,) = running.heard.of(ReplicaLost)
        assert str(event).startswith(f"{lost} was ended by SIGKILL")
        after = running.supervisor.pids
        # Survivors keep their processes, and so their weights.
        assert {each for each in pids if pids[each] != after[each]} == {lost}
        assert running.supervisor.is_ready
        formed = replica_of(running.supervisor.topology, name)
        assert formed.is_up
        assert [each.generation for each in formed.ranks] == [FIRST_GENERATION + 1] * 2
        # The others never changed.
        (other,) = [each for each in before.replicas if each.name != name]
        assert replica_of(running.supervisor.topology, other.name) == other
        await running.supervisor.stop()
        assert running.left_behind() == []


async def test_a_generation_is_listed_as_long_as_it_may_write(base):
    async with deployment(base, replica=FAST) as running:
        await running.supervisor.start()
        kill(running, "prefill0.0")
        await heard(running, ReplicaBack)
        seen = [replica_of(topology, "prefill0") for topology in topologies(running)]
        listed = [[(rank.rank, rank.generation) for rank in each.ranks] for each in seen]
        old, new = FIRST_GENERATION, FIRST_GENERATION + 1
        # The dead rank is gone at once, the survivor only by its own word.
        assert listed[0] == [(1, old)]
        assert listed[-1] == [(0, new), (1, new)]
        assert [each.is_up for each in seen][-1]
        assert not any(each.is_up for each in seen[:-1])
        assert not any((0, old) in each for each in listed)


async def test_what_a_dead_generation_left_is_swept_at_once(base):
    async with deployment(base, replica=FAST) as running:
        await running.supervisor.start()
        left = running.run_dir.path / f"decode0.1.{FIRST_GENERATION}.bell"
        left.touch()
        segment = (
            Path("/dev/shm") / f"{running.run_dir.deployment_id}.decode0.1.{FIRST_GENERATION}.0"
        )
        segment.touch()
        kill(running, "decode0.1")
        await heard(running, ReplicaBack)
        assert not left.exists()
        assert not segment.exists()
        # Nobody keeps a connection to what is gone, nor to what the survivor was.
        old = [f"decode0.{rank}.{FIRST_GENERATION}.ctl" for rank in (0, 1)]
        assert {Path(each).name for each in running.control.forgotten} >= set(old)


async def test_both_ranks_lost_at_once_are_one_loss(base):
    async with deployment(base, replica=FAST) as running:
        await running.supervisor.start()
        for rank in (0, 1):
            kill(running, f"decode0.{rank}")
        (back,) = await heard(running, ReplicaBack)
        assert back.generation == FIRST_GENERATION + 1


async def test_a_rank_killed_again_and_again_ends_the_deployment_by_name(base):
    bounds = ReplicaBounds(settle_s=0.02, restarts=RestartConfig(max_restarts=2, min_delay_s=0.02))
    async with deployment(base, replica=bounds) as running:
        await running.supervisor.start()
        for round_ in (1, 2, 3):
            kill(running, "prefill0.1")
            if round_ < 3:
                await heard(running, ReplicaBack, round_)
        async with asyncio.timeout(BOUND_S):
            error = await running.supervisor.failure()
        assert str(error).startswith("prefill0.1 was ended by SIGKILL")
        assert "prefill0 was restarted 2 times within 120 s already: it is given up" in str(error)


async def test_a_stopped_rank_is_silent_ended_and_replaced(base):
    bounds = ReplicaBounds(silent_s=0.5, settle_s=0.02)
    # The stubs beat only when they are told of something, so all of them are silent but the first.
    async with deployment(base, prefill="obey", decode="obey", replica=bounds) as running:
        await running.supervisor.start()
        pid = running.supervisor.pids["decode0.0"]
        os.kill(pid, signal.SIGSTOP)
        lost = await heard(running, ReplicaLost)
        assert any("was silent for" in event.reason for event in lost)


async def test_a_survivor_that_does_not_leave_is_ended_too(base):
    bounds = ReplicaBounds(settle_s=0.02, leave_timeout_s=0.3, restarts=FAST.restarts)
    async with deployment(base, decode="obey,cling", replica=bounds) as running:
        await running.supervisor.start()
        pids = running.supervisor.pids
        kill(running, "decode0.0")
        lost = await heard(running, ReplicaLost, 2)
        assert "decode0.1 did not leave its generation after" in lost[1].reason
        await heard(running, ReplicaBack)
        assert running.supervisor.pids["decode0.1"] != pids["decode0.1"]
        assert running.supervisor.is_ready


async def test_a_replacement_that_does_not_come_is_tried_again_within_the_budget(base):
    bounds = ReplicaBounds(
        settle_s=0.02, form_timeout_s=0.3, restarts=RestartConfig(max_restarts=2, min_delay_s=0.02)
    )
    async with deployment(base, decode="obey,mute", replica=bounds) as running:
        await running.supervisor.start()
        kill(running, "decode0.1")
        async with asyncio.timeout(BOUND_S):
            error = await running.supervisor.failure()
        assert re.search(r"decode0\.1 \(.*\) not ready after", str(error))
        assert running.heard.of(ReplicaBack) == []


async def test_a_broken_group_re_forms_without_a_new_process(base):
    async with deployment(base, replica=FAST) as running:
        await running.supervisor.start()
        pids = running.supervisor.pids
        broken = Broken(
            replica="decode0", rank=1, generation=FIRST_GENERATION, error="decode0.1 waited in vain"
        )
        running.control.send(running.run_dir.address("supervisor"), broken)
        (lost,) = await heard(running, ReplicaLost)
        assert lost.reason == "decode0.1 waited in vain"
        await heard(running, ReplicaBack)
        assert running.supervisor.pids == pids


async def test_words_of_another_generation_change_nothing(base, caplog):
    async with deployment(base, replica=FAST) as running:
        topology = await running.supervisor.start()
        address = running.run_dir.address("supervisor")
        stale = Broken(replica="decode0", rank=0, generation=FIRST_GENERATION - 1, error="late")
        absent = Broken(replica="decode9", rank=0, generation=FIRST_GENERATION, error="who")
        far = Broken(replica="decode0", rank=9, generation=FIRST_GENERATION, error="who")
        for message in (stale, absent, far):
            running.control.send(address, message)
        ready = running.supervisor.ready[0]
        wrong = Ready(
            replica="prefill0",
            info=type(ready.info)(rank=0, generation=9, address="ipc:///nowhere"),
            num_blocks=1,
            block_size=1,
            max_tokens=1,
        )
        running.control.send(address, wrong)
        async with asyncio.timeout(BOUND_S):
            while "of generation 9 says it is ready" not in caplog.text:
                await asyncio.sleep(0.01)
        assert running.supervisor.topology == topology
        assert running.heard.of(ReplicaLost) == []


async def test_a_mistake_that_a_person_must_mend_is_not_tried_again(base):
    async with deployment(base, replica=FAST) as running:
        await running.supervisor.start()
        failed = Failed(replica="decode0", rank=0, error="the folder is gone", is_user_error=True)
        running.control.send(running.run_dir.address("supervisor"), failed)
        async with asyncio.timeout(BOUND_S):
            error = await running.supervisor.failure()
        assert isinstance(error, UserError)
        assert str(error) == "the folder is gone"
