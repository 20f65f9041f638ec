"""Loops give every message to its owner, sleep when nothing wants a step, and stop when told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.comm.group import SingleGroup
from headrace.core.errors import ReplicaError
from headrace.core.flight import Flight
from headrace.core.messages import (
    Abort,
    CancelSession,
    Message,
    RankInfo,
    Reform,
    ReplicaInfo,
    SendDone,
    SessionQuiet,
    Shutdown,
    Topology,
    Wake,
)
from headrace.core.sharding import Role, Sharding
from headrace.engine.flight_log import FlightLog
from headrace.engine.lockstep import Lockstep
from headrace.engine.loops import IDLE_WAKE_S, DecodeLoop, PrefillLoop
from headrace.engine.orders import Orders
from headrace.kvcache.pool import BlockPool
from tests.support.engine_parts import ManualClock
from tests.support.engine_world import World


class ScriptedControl:
    """Hands out one batch of messages a turn, then ``Shutdown``; records how long it slept."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = [*batches, [Shutdown()]]
        self.waits: list[float] = []
        self.forgotten: list[str] = []
        self.world: World | None = None

    def recv_all(self) -> list[Message]:
        return self._batches.pop(0) if self._batches else []

    def forget(self, address: str) -> None:
        self.forgotten.append(address)

    def wait(self, timeout_s: float, *filenos: int) -> bool:
        self.waits.append(timeout_s)
        return True


class Recorder:
    """Stands for any collaborator: remembers calls, wants no step."""

    wants_step = False
    has_work = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.calls.append((name, args[0] if args else None))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Deadline(Recorder):
    """A ``Receiving`` with a deadline."""

    def __init__(self, deadline_s: float | None) -> None:
        super().__init__()
        self._deadline_s = deadline_s

    def next_deadline_s(self) -> float | None:
        return self._deadline_s


def decode_loop(
    control: ScriptedControl,
    rank: Recorder,
    receiving: Deadline | None,
    group: Any = None,
    flight: FlightLog | None = None,
) -> DecodeLoop:
    # A world that nobody holds closes its transport, whenever the collector comes by.
    control.world = world = World(tp=0)
    return DecodeLoop(
        rank=rank,  # type: ignore[arg-type]
        orders=Orders(generation=1),
        control=control,  # type: ignore[arg-type]
        lockstep=Lockstep(group or SingleGroup(), lambda step: None),
        receiving=receiving,  # type: ignore[arg-type]
        engine=world.transfer if receiving is not None else None,
        pool=world.pool,
        clock=ManualClock(),
        flight=flight,
    )


def test_each_message_reaches_its_owner() -> None:
    topology = Topology(replicas=[])
    quiet = SessionQuiet(session_id="s", rank=0, generation=1)
    control = ScriptedControl([Abort(request_id="r"), topology, quiet, Wake(step=0)])
    rank, receiving = Recorder(), Deadline(None)
    decode_loop(control, rank, receiving).run()
    assert ("abort", Abort(request_id="r")) in rank.calls
    assert [call for call in receiving.calls if call[0].startswith("on_")] == [
        ("on_topology", topology),
        ("on_message", quiet),
    ]


def test_a_mono_rank_has_no_use_for_session_messages() -> None:
    control = ScriptedControl([SessionQuiet(session_id="s", rank=0, generation=1)])
    rank = Recorder()
    decode_loop(control, rank, None).run()
    assert set(rank.names()) == {"advance"}


@pytest.mark.parametrize(
    ("deadline_s", "expected"), [(None, IDLE_WAKE_S), (0.25, 0.25), (-5.0, 0.0), (9.0, IDLE_WAKE_S)]
)
def test_an_idle_rank_sleeps_until_the_next_deadline(
    deadline_s: float | None, expected: float
) -> None:
    control = ScriptedControl([])
    decode_loop(control, Recorder(), Deadline(deadline_s)).run()
    assert control.waits[0] == expected


def test_a_rank_told_to_stop_does_not_sleep_first() -> None:
    decode, prefill = ScriptedControl(), ScriptedControl()
    decode_loop(decode, Recorder(), Deadline(None)).run()
    prefill_loop(prefill, Recorder(), None).run()
    assert (decode.waits, prefill.waits) == ([], [])


def test_the_pool_is_checked_on_falling_idle_and_not_on_every_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[BlockPool] = []
    monkeypatch.setattr(BlockPool, "check_invariants", lambda pool: checks.append(pool))
    decode_loop(ScriptedControl([], [], []), Recorder(), Deadline(None)).run()
    assert len(checks) == 1


class LeavingGroup(SingleGroup):
    """A group of two whose other rank has left."""

    size = 2  # type: ignore[assignment]

    def agree(self, word: int) -> list[int]:
        raise ReplicaError("rank 1 left")


def test_peers_that_left_are_no_error_once_this_rank_is_told_to_stop() -> None:
    rank = Recorder()
    rank.wants_step = True
    assert decode_loop(ScriptedControl([]), rank, None, LeavingGroup()).run() is None
    with pytest.raises(ReplicaError, match="rank 1 left"):
        decode_loop(ScriptedControl([], [], []), rank, None, LeavingGroup()).run()


def test_a_broken_group_is_explained_and_recorded(tmp_path: Path) -> None:
    flight, path = Flight("decode0.0"), tmp_path / "flight.json"
    log = FlightLog(flight, path=path, clock=ManualClock())
    rank = Recorder()
    rank.wants_step = True
    loop = decode_loop(ScriptedControl([], [], []), rank, None, LeavingGroup(), flight=log)
    with pytest.raises(ReplicaError, match="decode0.0 in step 0: rank 1 left"):
        loop.run()
    assert b"rank 1 left" in path.read_bytes()


def prefill_loop(control: ScriptedControl, worker: Recorder, lead: Recorder | None) -> PrefillLoop:
    control.world = world = World(tp=0)
    return PrefillLoop(
        worker=worker,  # type: ignore[arg-type]
        lead=lead,  # type: ignore[arg-type]
        orders=Orders(generation=1),
        control=control,  # type: ignore[arg-type]
        engine=world.transfer,
    )


def test_cancellations_go_to_the_lead_or_to_the_follower_itself() -> None:
    cancel = CancelSession(session_id="s", reply_to="decode")
    worker, lead = Recorder(), Recorder()
    prefill_loop(ScriptedControl([cancel, SendDone(session_id="s", rank=1)]), worker, lead).run()
    assert [name for name in lead.names() if name.startswith("on_")] == [
        "on_cancel",
        "on_send_done",
    ]
    assert "cancel" not in worker.names()
    prefill_loop(ScriptedControl([cancel]), worker, None).run()
    assert ("cancel", cancel) in worker.calls


def test_decoders_that_are_gone_are_forgotten() -> None:
    def topology(*addresses: str) -> Topology:
        ranks = [RankInfo(rank=i, generation=1, address=a) for i, a in enumerate(addresses)]
        replica = ReplicaInfo(
            name="decode0", role=Role.DECODE, sharding=Sharding(dp=len(ranks)), ranks=ranks
        )
        return Topology(replicas=[replica])

    worker, lead = Recorder(), Recorder()
    control = ScriptedControl([topology("a", "b")], [topology("b")])
    prefill_loop(control, worker, lead).run()
    assert ("forget_peer", "a") in worker.calls
    assert ("forget_peer", "a") in lead.calls
    assert ("forget_peer", "b") not in worker.calls
    assert control.forgotten == ["a"]


def test_a_rank_told_to_re_form_names_the_generation_even_when_its_group_broke() -> None:
    reform = Reform(generation=2)
    assert prefill_loop(ScriptedControl([reform]), Recorder(), Recorder()).run() == 2
    rank = Recorder()
    rank.wants_step = True
    loop = decode_loop(ScriptedControl([], [reform]), rank, None, LeavingGroup())
    assert loop.run() == 2
