"""Live view of the replicas: the topology plus each rank's last accepted heartbeat.

Only ranks of the current topology are believed, and only under the generation it names. A rank is
late when its heartbeats stop (a stopped process) or its progress stands still with requests
waiting; it is good again with the next sign of life. A replica that re-forms gets nothing.
Nothing here decides: ``choice`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.core.clock import Clock
from headrace.core.errors import RequestError
from headrace.core.messages import AnyMessage, Heartbeat, Ready, ReplicaInfo, Topology
from headrace.core.sharding import Role
from headrace.serving.fleet import Limits, Placement, RankLoad, Readiness, absence
from headrace.serving.router.choice import (
    Candidate,
    Health,
    choose_decode_rank,
    choose_prefill_replica,
)
from headrace.serving.router.config import RegistryConfig
from headrace.serving.router.signs import RankSigns

RankKey = tuple[str, int]


class Registry:
    """The router's memory, implementing ``serving.fleet.Fleet``. One thread, no I/O.

    Args:
        config: Time limits.
        clock: Source of ``now``.
    """

    def __init__(self, config: RegistryConfig, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._replicas: dict[str, ReplicaInfo] = {}
        self._ranks: dict[RankKey, RankSigns] = {}
        self._sizes: dict[RankKey, Ready] = {}
        self._prefilling: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()

    # -- what the ranks say -------------------------------------------------------------------

    def on_message(self, message: AnyMessage) -> None:
        """Take in a ``Topology``, ``Heartbeat`` or ``Ready``; other messages are not for us."""
        match message:
            case Heartbeat():
                self._on_heartbeat(message)
            case Topology():
                self._on_topology(message)
            case Ready():
                self._sizes[message.replica, message.info.rank] = message
            case _:
                pass

    def _on_topology(self, topology: Topology) -> None:
        now_s = self._clock.now_s()
        old, self._ranks = self._ranks, {}
        self._replicas = {replica.name: replica for replica in topology.replicas}
        for replica in topology.replicas:
            for info in replica.ranks:
                key = (replica.name, info.rank)
                known = old.get(key)
                if known is None or known.generation != info.generation:
                    known = RankSigns(info.generation, info.address, now_s, now_s)
                    self._prefilling.pop(replica.name, None)
                self._ranks[key] = known
        # A rank that is away comes back with the size that it had.
        self._sizes = {key: ready for key, ready in self._sizes.items() if key[0] in self._replicas}

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        rank = self._ranks.get((beat.replica, beat.info.rank))
        if rank is None or rank.generation != beat.info.generation:
            self._counters["headrace_stale_heartbeats_total"] += 1
            return
        rank.take(beat, self._clock.now_s())

    # -- what the front asks ------------------------------------------------------------------

    def place(self, *, num_sequences: int) -> Placement:
        """See ``Fleet.place``."""
        decoders = list(self._decode_candidates())
        decode = choose_decode_rank(decoders)
        if decode.index is None:
            away = "; ".join(self._absences(Role.DECODE, Role.MONO))
            reason = f"{decode.reason}: {away}" if away else decode.reason
            raise RequestError(f"{reason}; try again", status=503, code="overloaded")
        chosen = decoders[decode.index]
        rank = self._ranks[chosen.replica, chosen.rank]
        prefill_replica, reason = self._place_prefill(chosen.replica)
        rank.send(num_sequences, self._clock.now_s())
        self._prefilling[prefill_replica] += 1
        return Placement(
            address=rank.address,
            replica=chosen.replica,
            rank=chosen.rank,
            generation=rank.generation,
            prefill_replica=prefill_replica,
            num_sequences=num_sequences,
            reason=f"{decode.reason}; {reason}",
        )

    def note_first_output(self, placement: Placement) -> None:
        """See ``Fleet.note_first_output``. Called once per placement at most."""
        name = placement.prefill_replica
        # A replica that restarted meanwhile began again at zero.
        if self._prefilling[name] > 0:
            self._prefilling[name] -= 1

    def release(self, placement: Placement) -> None:
        """See ``Fleet.release``; ``note_first_output`` has been called before."""
        rank = self._ranks.get((placement.replica, placement.rank))
        if rank is not None and rank.generation == placement.generation:
            rank.in_flight -= placement.num_sequences

    def readiness(self) -> Readiness:
        """See ``Fleet.readiness``. An empty topology is not ready."""
        if not self._replicas:
            return Readiness(False, "no replica has joined yet")
        if not any(replica.role is not Role.PREFILL for replica in self._replicas.values()):
            return Readiness(False, "no decode replica has joined")
        now_s = self._clock.now_s()
        faults = self._absences(*Role)
        for name, rank in sorted(self._ranks):
            # What is left of a replica that re-forms is silent, and not to be blamed for it.
            if not self._replicas[name].is_up:
                continue
            if fault := self._ranks[name, rank].fault(now_s, self._config):
                faults.append(f"{name}.{rank} {fault}")
        return Readiness(not faults, "; ".join(faults))

    def limits(self) -> Limits:
        """See ``Fleet.limits``; from the sizes that ranks reported when they were ready."""
        decode: list[int] = []
        every: list[int] = []
        for key, ready in self._sizes.items():
            held = min(ready.max_tokens, ready.num_blocks * ready.block_size)
            every.append(held)
            if self._replicas[key[0]].role is not Role.PREFILL:
                decode.append(held)
        return Limits(
            max_request_tokens=min(decode, default=0), max_prompt_tokens=min(every, default=0)
        )

    def rank_loads(self) -> list[RankLoad]:
        """See ``Fleet.rank_loads``."""
        return [
            self._load((name, rank))
            for name, replica in sorted(self._replicas.items())
            for rank in range(replica.sharding.num_ranks)
        ]

    def counters(self) -> dict[str, float]:
        """See ``Fleet.counters``."""
        return {
            "headrace_stale_heartbeats_total": 0.0,
            "headrace_local_prefills_total": 0.0,
            **self._counters,
        }

    # -- health -------------------------------------------------------------------------------

    def _health(self, key: RankKey) -> Health:
        rank = self._ranks.get(key)
        if rank is None or not self._replicas[key[0]].is_up:
            return Health.DEAD
        return rank.health(self._clock.now_s(), self._config)

    def _group_health(self, replica: ReplicaInfo) -> Health:
        # Ranks of a replica run in lockstep: one that stands stops them all.
        return max(
            (self._health((replica.name, info.rank)) for info in replica.ranks),
            default=Health.DEAD,
        )

    def _absences(self, *roles: Role) -> list[str]:
        """Return in words what replicas of these roles wait for, if they are not up."""
        return [
            f"{name} {absence(replica)}"
            for name, replica in sorted(self._replicas.items())
            if replica.role in roles and not replica.is_up
        ]

    # -- candidates ---------------------------------------------------------------------------

    def _decode_candidates(self) -> Iterable[Candidate]:
        for replica in self._replicas.values():
            if replica.role is Role.PREFILL or not replica.is_up:
                continue
            health = self._group_health(replica)
            for info in replica.ranks:
                key = (replica.name, info.rank)
                yield self._candidate(key, health, in_flight=self._ranks[key].in_flight)

    def _place_prefill(self, decode_replica: str) -> tuple[str, str]:
        if self._replicas[decode_replica].role is Role.MONO:
            return "", "mono computes its own prompts"
        prefillers = [each for each in self._replicas.values() if each.role is Role.PREFILL]
        candidates = [
            self._candidate((r.name, 0), self._group_health(r), in_flight=self._prefilling[r.name])
            for r in prefillers
            if r.is_up
        ]
        choice = choose_prefill_replica(candidates)
        if choice.index is not None:
            return candidates[choice.index].replica, choice.reason
        if away := [each.name for each in prefillers if not each.is_up]:
            # It may be up again by the time that the request is admitted: the decoder sees.
            return away[0], f"{choice.reason}, {away[0]} re-forms"
        self._counters["headrace_local_prefills_total"] += 1
        return "", choice.reason

    def _candidate(self, key: RankKey, health: Health, *, in_flight: int) -> Candidate:
        load = self._load(key)
        return Candidate(
            replica=key[0],
            rank=key[1],
            health=health,
            in_flight=in_flight,
            num_waiting=load.num_waiting,
            num_running=load.num_running,
            free_blocks=load.free_blocks,
        )

    def _load(self, key: RankKey) -> RankLoad:
        role, is_up = self._replicas[key[0]].role, self._health(key) is Health.GOOD
        rank = self._ranks.get(key)
        if rank is None or rank.beat is None:
            return RankLoad(replica=key[0], rank=key[1], role=role, is_up=is_up)
        return RankLoad(
            replica=key[0],
            rank=key[1],
            role=role,
            is_up=is_up,
            num_running=rank.beat.num_running,
            num_waiting=rank.beat.num_waiting,
            free_blocks=rank.beat.free_blocks,
            total_blocks=rank.beat.total_blocks,
            counters=rank.beat.counters,
        )
