"""What a decode rank knows of the prefill replicas: who lives, whom to ask, who has which head."""

from __future__ import annotations

import msgspec

from headrace.core.layouts import CacheLayout
from headrace.core.messages import RankInfo, ReplicaInfo, Topology
from headrace.core.sharding import Role, split_range
from headrace.engine.sequence import Sequence


class Prefillers:
    """The prefill replicas of the last topology."""

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaInfo] = {}

    def update(self, topology: Topology) -> list[tuple[str, RankInfo]]:
        """Take a topology.

        Returns:
            Ranks, by name of their replica, whose generation will never write again: they were
            known, and are missing now or listed under another generation.
        """
        known = {each.name: each for each in topology.replicas if each.role is Role.PREFILL}
        alive = {_key(each.name, rank) for each in known.values() for rank in each.ranks}
        dead = [
            (replica.name, rank)
            for replica in self._replicas.values()
            for rank in replica.ranks
            if _key(replica.name, rank) not in alive
        ]
        self._replicas = known
        return dead

    def has_address(self, address: str) -> bool:
        """Whether a rank that may still be spoken to has this control address."""
        return any(
            rank.address == address for each in self._replicas.values() for rank in each.ranks
        )

    def choose(self, sequence: Sequence) -> ReplicaInfo | None:
        """The router's choice while it is up, else any other; none if the router had none.

        One that failed the sequence is asked again only if there is no other.
        """
        name = sequence.submit.prefill_replica
        if not name:
            return None
        up = [each for each in self._replicas.values() if each.is_up and _is_whole(each)]
        ranked = sorted(up, key=lambda it: (it.name in sequence.failed_replicas, it.name != name))
        return next(iter(ranked), None)


def source_heads(replica: ReplicaInfo, target: CacheLayout) -> list[CacheLayout]:
    """Which heads each source rank holds; pool and block sizes do not matter here."""
    num_heads = target.layers[0].num_kv_heads
    held = [split_range(num_heads, replica.sharding.tp, rank.rank) for rank in replica.ranks]
    return [
        msgspec.structs.replace(target, first_head=heads.start, num_heads=len(heads))
        for heads in held
    ]


def _is_whole(replica: ReplicaInfo) -> bool:
    """Whether every rank is there, or nobody could say who owes which head."""
    return len(replica.ranks) == replica.sharding.num_ranks > 0


def _key(replica: str, rank: RankInfo) -> tuple[str, int, int]:
    """Generations are the replica's: only with the rank they name one that may write."""
    return replica, rank.rank, rank.generation
