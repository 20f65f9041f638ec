"""A deployment on an agent's host: it gets what it orders, and leaves nothing when it goes."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from headrace.cluster.agent.keys import derive
from headrace.cluster.agent.orders import (
    Beat,
    Exited,
    Line,
    NotSpawned,
    Opened,
    Refused,
    Signal,
    Spawn,
    Spawned,
    Sweep,
)
from headrace.core.launch import LaunchSpec
from tests.support.cluster_agents import (
    OPEN,
    PATIENCE_S,
    SECRET,
    connected,
    opened,
    rank_spec,
    report,
    running_agent,
    until,
)
from tests.support.cluster_deployment import is_running

ECHO = (sys.executable, "-c", "import sys; print(sys.stdin.read())")


async def test_a_rank_gets_this_hosts_folder_and_the_derived_key(base: Path) -> None:
    async with running_agent(base, command=ECHO) as agent, connected(agent.port) as wire:
        wire.send(type(OPEN)(version=OPEN.version, deployment_id="d", nonce=b"n" * 32, model="m"))
        await report(wire, Opened)
        wire.send(Spawn(number=7, spec=rank_spec()))
        assert (await report(wire, Spawned)).number == 7
        while not isinstance(line := await wire.recv(PATIENCE_S), Line):
            assert isinstance(line, Beat)
        spec = LaunchSpec.from_json(line.text.encode())
        (run_dir,) = agent.run_dirs()
        assert (spec.run_dir, spec.deployment_id) == (str(run_dir), run_dir.name)
        assert spec.key == derive(SECRET, b"deployment", b"n" * 32).hex()
        assert spec.model == "M"
        ended = await report(wire, Exited)
        assert (ended.number, ended.exit_code, len(ended.last_lines)) == (7, 0, 1)


async def test_a_signal_reaches_its_rank_and_the_end_is_reported(base: Path) -> None:
    async with running_agent(base) as agent, opened(agent.port) as wire:
        wire.send(Spawn(number=1, spec=rank_spec()))
        await report(wire, Spawned)
        wire.send(Signal(number=2, signal=signal.SIGKILL))
        wire.send(Signal(number=1, signal=signal.SIGKILL))
        ended = await report(wire, Exited)
        assert (ended.number, ended.exit_code) == (1, -signal.SIGKILL)
        wire.send(Signal(number=1, signal=signal.SIGKILL))
        wire.send(Beat())


async def test_when_the_supervisor_goes_its_ranks_and_its_folder_go(base: Path) -> None:
    async with running_agent(base) as agent:
        async with opened(agent.port) as wire:
            wire.send(Spawn(number=1, spec=rank_spec("deaf")))
            pid = (await report(wire, Spawned)).pid
            assert is_running(pid)
            assert len(agent.run_dirs()) == 1
        await until(lambda: not agent.run_dirs())
        assert not is_running(pid)


async def test_a_supervisor_that_falls_silent_is_taken_for_gone(base: Path) -> None:
    async with running_agent(base, silent_s=0.2) as agent, opened(agent.port) as wire:
        wire.send(Spawn(number=1, spec=rank_spec("deaf")))
        pid = (await report(wire, Spawned)).pid
        # No sign of life from here on.
        await until(lambda: not agent.run_dirs())
        assert not is_running(pid)


async def test_two_deployments_do_not_see_each_other(base: Path) -> None:
    async with running_agent(base) as agent, opened(agent.port) as stays:
        async with opened(agent.port) as goes:
            for wire in (stays, goes):
                wire.send(Spawn(number=1, spec=rank_spec()))
            kept = (await report(stays, Spawned)).pid
            await report(goes, Spawned)
            assert len(agent.run_dirs()) == 2
        await until(lambda: len(agent.run_dirs()) == 1)
        assert is_running(kept)


async def test_what_a_rank_left_is_swept_when_it_is_asked_for(base: Path) -> None:
    async with running_agent(base) as agent, opened(agent.port) as wire:
        (run_dir,) = agent.run_dirs()
        for generation in (1, 2):
            (run_dir / f"prefill0.1.{generation}.ctl").touch()
        wire.send(Sweep(replica="prefill0", rank=1, generation=1))
        await until(lambda: not (run_dir / "prefill0.1.1.ctl").exists())
        assert (run_dir / "prefill0.1.2.ctl").exists()


async def test_a_command_that_cannot_be_started_is_reported(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("headrace.cluster.process.RankProcess.spawn", fail)
    async with running_agent(base) as agent, opened(agent.port) as wire:
        wire.send(Spawn(number=3, spec=rank_spec()))
        failed = await report(wire, NotSpawned)
        assert (failed.number, failed.error) == (3, "no more processes")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "0.0.1"}, r"runs headrace .*, this one 0\.0\.1: install the same"),
        ({"model": "/absent/m"}, "^/absent/m: no such folder"),
    ],
)
async def test_what_a_person_must_mend_is_told(
    base: Path, change: dict[str, str], reason: str
) -> None:
    opening = type(OPEN)(
        **{"version": OPEN.version, "deployment_id": "d", "nonce": bytes(32), **change}
    )
    async with running_agent(base) as agent, connected(agent.port) as wire:
        wire.send(opening)
        assert re.search(reason, (await report(wire, Refused)).error)
        with pytest.raises(ConnectionError):
            await report(wire, Opened)
        assert agent.run_dirs() == []


@pytest.mark.parametrize(
    "order",
    [
        Signal(number=1, signal=signal.SIGUSR1),
        Sweep(replica="p", rank=0, generation=1),
        Spawn(number=1, spec=rank_spec()),
    ],
    ids=["signal", "sweep", "spawn"],
)
async def test_an_order_out_of_place_ends_the_connection(base: Path, order: object) -> None:
    async with running_agent(base) as agent, connected(agent.port) as wire:
        if isinstance(order, Signal):
            wire.send(OPEN)
            await report(wire, Opened)
        wire.send(order)  # type: ignore[arg-type]
        with pytest.raises(ConnectionError):
            await report(wire, Exited)
        await until(lambda: not agent.run_dirs())
    assert os.listdir(base) == []
