"""What the HTTP front needs to know of the replicas behind it: an interface, no implementation.

``serving/router`` implements it, ``serving/openai`` consumes it, and neither imports the other.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from headrace.core.messages import ReplicaInfo, Topology
from headrace.core.sharding import Role


class Placement(Struct, frozen=True, kw_only=True):
    """Where one request runs.

    Attributes:
        address: Control address of the decode rank.
        replica: Its replica.
        rank: Its index in the replica.
        generation: Its generation when the choice was made.
        prefill_replica: Replica that computes the prompt; empty when the decode rank does.
        num_sequences: Sequences that the request brings.
        reason: Why these, in words.
    """

    address: str
    replica: str
    rank: int
    generation: int
    prefill_replica: str = ""
    num_sequences: int = 1
    reason: str = ""


class Readiness(Struct, frozen=True):
    """Whether every replica is alive and making progress; ``reason`` names what is not."""

    is_ready: bool
    reason: str = ""


class Limits(Struct, frozen=True, kw_only=True):
    """Sizes that a request must respect on whichever replica it lands [tokens]; 0 is unknown.

    Attributes:
        max_request_tokens: Prompt plus output that every decode rank can hold.
        max_prompt_tokens: Prompt that every replica can compute.
    """

    max_request_tokens: int = 0
    max_prompt_tokens: int = 0


class RankLoad(Struct, frozen=True, kw_only=True):
    """One rank as its last accepted heartbeat described it."""

    replica: str
    rank: int
    role: Role
    is_up: bool
    num_running: int = 0
    num_waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    counters: dict[str, float] = {}


class Fleet(Protocol):
    """The replicas, as the front sees them. Called from the event loop's thread only."""

    def place(self, *, num_sequences: int) -> Placement:
        """Choose where a request runs and count it as load there until ``release``.

        Raises:
            RequestError: Status 503: no decode replica is up; the message says which re-forms.
        """
        ...

    def note_first_output(self, placement: Placement) -> None:
        """The request's prompt is done: its prefill replica carries it no longer."""
        ...

    def release(self, placement: Placement) -> None:
        """The request is over, however it ended."""
        ...

    def readiness(self) -> Readiness:
        """Return whether all replicas make progress right now."""
        ...

    def limits(self) -> Limits:
        """Return the sizes that hold on every replica."""
        ...

    def rank_loads(self) -> list[RankLoad]:
        """Return one entry per rank of the topology, in (replica, rank) order."""
        ...

    def counters(self) -> dict[str, float]:
        """Return the router's own monotonic counters, by Prometheus name."""
        ...


def loss_of(placement: Placement, topology: Topology) -> str:
    """Return what took a request's decode rank from it, in words; empty while it is there.

    A rank's work does not outlive its replica's generation, so a replica that re-forms has lost
    the work of all its ranks.
    """
    name = placement.replica
    replica = next((each for each in topology.replicas if each.name == name), None)
    if replica is None:
        return f"decode replica {name} is gone"
    here = {info.rank: info.generation for info in replica.ranks}
    if placement.rank not in here:
        return f"decode rank {name}.{placement.rank} died"
    if here[placement.rank] != placement.generation:
        return f"decode rank {name}.{placement.rank} was started anew"
    if not replica.is_up:
        return f"decode replica {name} {absence(replica)}"
    return ""


def absence(replica: ReplicaInfo) -> str:
    """Return in words what a replica that is not up waits for.

    Example:
        >>> from headrace.core.sharding import Sharding
        >>> sharding = Sharding(dp=2, ep=2)
        >>> absence(ReplicaInfo(name="d", role=Role.DECODE, sharding=sharding, ranks=[]))
        're-forms without ranks 0, 1'
    """
    here = {info.rank for info in replica.ranks}
    missing = [str(rank) for rank in range(replica.sharding.num_ranks) if rank not in here]
    if not missing:
        return "re-forms"
    return f"re-forms without rank{'s' * (len(missing) > 1)} {', '.join(missing)}"


def addresses(topology: Topology) -> set[str]:
    """Return the control addresses of all ranks in ``topology``."""
    return {info.address for replica in topology.replicas for info in replica.ranks}
