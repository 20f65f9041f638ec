"""Live view of the replicas: the topology plus each rank's last accepted heartbeat.

Only ranks of the current topology are believed, and only under the generation it names. A rank is
late when its heartbeats stop (a stopped process) or its progress stands still with work pending;
it is good again with the next sign of life. Nothing here decides: ``choice`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, RequestError
from headrace.core.messages import AnyMessage, Heartbeat, Ready, ReplicaInfo, Topology
from headrace.core.sharding import Role
from headrace.serving.fleet import Limits, Placement, RankLoad, Readiness
from headrace.serving.router.choice import (
    Candidate,
    Health,
    choose_decode_rank,
    choose_prefill_replica,
)

RankKey = tuple[str, int]


class RegistryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a silent or standing rank counts as late, and when as dead.

    Attributes:
        late_s: Silence after which a rank is late and ``/ready`` red [s]; several heartbeats.
        dead_s: Silence after which a rank gets no new requests at all [s].
        stuck_s: Time without progress, work pending, after which a rank is late [s]. Longer than
            any honest step or transfer: waiting for a busy prefiller is not progress either.
    """

    late_s: float = 3.0
    dead_s: float = 15.0
    stuck_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 < self.late_s <= self.dead_s:
            raise ConfigError(
                f"late_s={self.late_s}, dead_s={self.dead_s}: expected 0 < late_s <= dead_s"
            )
        if self.stuck_s <= 0.0:
            raise ConfigError(f"stuck_s={self.stuck_s}: expected more than 0")


class _Rank(Struct):
    """What is known of one rank of the topology. ``heard_s`` starts when it joined."""

    generation: int
    address: str
    heard_s: float
    moved_s: float
    beat: Heartbeat | None = None


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
        self._ranks: dict[RankKey, _Rank] = {}
        self._sizes: dict[RankKey, Ready] = {}
        self._in_flight: Counter[RankKey] = Counter()
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
                    known = _Rank(info.generation, info.address, now_s, now_s)
                    self._in_flight.pop(key, None)
                    self._prefilling.pop(replica.name, None)
                self._ranks[key] = known
        self._sizes = {key: ready for key, ready in self._sizes.items() if key in self._ranks}

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        rank = self._ranks.get((beat.replica, beat.info.rank))
        if rank is None or rank.generation != beat.info.generation:
            self._counters["headrace_stale_heartbeats_total"] += 1
            return
        rank.heard_s = self._clock.now_s()
        if rank.beat is None or not beat.has_work or beat.progress != rank.beat.progress:
            rank.moved_s = rank.heard_s
        rank.beat = beat

    # -- what the front asks ------------------------------------------------------------------

    def place(self, *, num_sequences: int) -> Placement:
        """See ``Fleet.place``."""
        decoders = list(self._decode_candidates())
        decode = choose_decode_rank(decoders)
        if decode.index is None:
            raise RequestError(f"{decode.reason}; try again", status=503, code="overloaded")
        chosen = decoders[decode.index]
        rank = self._ranks[chosen.replica, chosen.rank]
        prefill_replica, reason = self._place_prefill(chosen.replica)
        self._in_flight[chosen.replica, chosen.rank] += num_sequences
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
        key = (placement.replica, placement.rank)
        rank = self._ranks.get(key)
        if rank is not None and rank.generation == placement.generation:
            self._in_flight[key] -= placement.num_sequences

    def readiness(self) -> Readiness:
        """See ``Fleet.readiness``. An empty topology is not ready."""
        if not self._ranks:
            return Readiness(False, "no replica has joined yet")
        if not any(replica.role is not Role.PREFILL for replica in self._replicas.values()):
            return Readiness(False, "no decode replica has joined")
        faults = [fault for key in sorted(self._ranks) if (fault := self._fault(key))]
        return Readiness(not faults, "; ".join(faults))

    def limits(self) -> Limits:
        """See ``Fleet.limits``; from the sizes that ranks reported when they were ready."""
        decode: list[int] = []
        every: list[int] = []
        for key in self._ranks:
            ready = self._sizes.get(key)
            if ready is None:
                continue
            held = min(ready.max_tokens, ready.num_blocks * ready.block_size)
            every.append(held)
            if self._replicas[key[0]].role is not Role.PREFILL:
                decode.append(held)
        return Limits(
            max_request_tokens=min(decode, default=0), max_prompt_tokens=min(every, default=0)
        )

    def rank_loads(self) -> list[RankLoad]:
        """See ``Fleet.rank_loads``."""
        return [self._load(key) for key in sorted(self._ranks)]

    def counters(self) -> dict[str, float]:
        """See ``Fleet.counters``."""
        return {
            "headrace_stale_heartbeats_total": 0.0,
            "headrace_local_prefills_total": 0.0,
            **self._counters,
        }

    # -- health -------------------------------------------------------------------------------

    def _health(self, key: RankKey) -> Health:
        silent_s = self._clock.now_s() - self._ranks[key].heard_s
        if silent_s > self._config.dead_s:
            return Health.DEAD
        return Health.LATE if self._fault(key) else Health.GOOD

    def _fault(self, key: RankKey) -> str:
        rank, now_s = self._ranks[key], self._clock.now_s()
        name = f"{key[0]}.{key[1]}"
        silent_s = now_s - rank.heard_s
        if rank.beat is None:
            return f"{name} has not been heard yet"
        if silent_s > self._config.late_s:
            return f"{name} has been silent for {silent_s:.1f} s"
        if rank.beat.has_work and now_s - rank.moved_s > self._config.stuck_s:
            return f"{name} has made no progress for {now_s - rank.moved_s:.1f} s"
        return ""

    def _group_health(self, replica: ReplicaInfo) -> Health:
        # Ranks of a replica run in lockstep: one that stands stops them all.
        return max(
            (self._health((replica.name, info.rank)) for info in replica.ranks),
            default=Health.DEAD,
        )

    # -- candidates ---------------------------------------------------------------------------

    def _decode_candidates(self) -> Iterable[Candidate]:
        for replica in self._replicas.values():
            if replica.role is Role.PREFILL:
                continue
            health = self._group_health(replica)
            for info in replica.ranks:
                key = (replica.name, info.rank)
                yield self._candidate(key, health, in_flight=self._in_flight[key])

    def _place_prefill(self, decode_replica: str) -> tuple[str, str]:
        if self._replicas[decode_replica].role is Role.MONO:
            return "", "mono computes its own prompts"
        prefillers = [r for r in self._replicas.values() if r.role is Role.PREFILL]
        candidates = [
            self._candidate((r.name, 0), self._group_health(r), in_flight=self._prefilling[r.name])
            for r in prefillers
        ]
        choice = choose_prefill_replica(candidates)
        if choice.index is None:
            self._counters["headrace_local_prefills_total"] += 1
            return "", choice.reason
        return candidates[choice.index].replica, choice.reason

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
        rank = self._ranks[key]
        load = RankLoad(
            replica=key[0],
            rank=key[1],
            role=self._replicas[key[0]].role,
            is_up=self._health(key) is Health.GOOD,
        )
        if rank.beat is None:
            return load
        return RankLoad(
            replica=load.replica,
            rank=load.rank,
            role=load.role,
            is_up=load.is_up,
            num_running=rank.beat.num_running,
            num_waiting=rank.beat.num_waiting,
            free_blocks=rank.beat.free_blocks,
            total_blocks=rank.beat.total_blocks,
            counters=rank.beat.counters,
        )
