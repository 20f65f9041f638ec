"""Who may still write, whom to ask next, and which heads each rank holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.core.messages import RankInfo, ReplicaInfo, Topology
from headrace.core.sharding import Role, Sharding
from headrace.engine.prefillers import Prefillers, source_heads
from tests.support.transfer_layouts import split_layouts


def replica(
    name: str, *generations: int | None, is_up: bool = True, role: Role = Role.PREFILL
) -> ReplicaInfo:
    """Return a replica whose rank r has generation ``generations[r]``; None is missing."""
    return ReplicaInfo(
        name=name,
        role=role,
        sharding=Sharding(tp=len(generations)),
        ranks=[
            RankInfo(rank=rank, generation=generation, address=f"{name}.{rank}.{generation}")
            for rank, generation in enumerate(generations)
            if generation is not None
        ],
        is_up=is_up,
    )


def asking(name: str, *failed: str) -> Any:
    return SimpleNamespace(submit=SimpleNamespace(prefill_replica=name), failed_replicas=failed)


def dead(prefillers: Prefillers, *replicas: ReplicaInfo) -> list[tuple[str, int, int]]:
    found = prefillers.update(Topology(replicas=list(replicas)))
    return [(name, rank.rank, rank.generation) for name, rank in found]


def test_a_rank_that_is_missing_is_dead_though_its_sister_of_that_generation_lives() -> None:
    prefillers = Prefillers()
    assert dead(prefillers, replica("p0", 1, 1), replica("p1", 1)) == []
    assert dead(prefillers, replica("p0", 1, None, is_up=False), replica("p1", 1)) == [("p0", 1, 1)]
    assert dead(prefillers, replica("p0", 2, None, is_up=False), replica("p1", 1)) == [("p0", 0, 1)]
    assert dead(prefillers, replica("p0", 2, 2), replica("p1", 1)) == []


def test_a_later_generation_proves_the_earlier_one_dead_and_so_does_the_replicas_absence() -> None:
    prefillers = Prefillers()
    dead(prefillers, replica("p0", 1, 1), replica("p1", 4))
    assert dead(prefillers, replica("p0", 2, 2)) == [("p0", 0, 1), ("p0", 1, 1), ("p1", 0, 4)]


def test_decoders_are_no_prefillers() -> None:
    prefillers = Prefillers()
    dead(prefillers, replica("d0", 1, role=Role.DECODE))
    assert prefillers.choose(asking("d0")) is None
    assert dead(prefillers) == []


def test_addresses_are_known_as_long_as_their_generation_may_write() -> None:
    prefillers = Prefillers()
    dead(prefillers, replica("p0", 1, 1))
    assert prefillers.has_address("p0.0.1")
    dead(prefillers, replica("p0", None, 1, is_up=False))
    assert not prefillers.has_address("p0.0.1")
    assert prefillers.has_address("p0.1.1")


def test_the_routers_choice_comes_first_unless_it_failed_or_is_not_up() -> None:
    prefillers = Prefillers()
    both = replica("p0", 1), replica("p1", 1)
    dead(prefillers, *both)
    assert prefillers.choose(asking("p1")) == both[1]
    assert prefillers.choose(asking("p1", "p1")) == both[0]
    assert prefillers.choose(asking("p1", "p1", "p0")) == both[1]
    assert prefillers.choose(asking("gone")) == both[0]
    assert prefillers.choose(asking("")) is None
    dead(prefillers, both[0], replica("p1", 1, is_up=False))
    assert prefillers.choose(asking("p1")) == both[0]
    dead(prefillers)
    assert prefillers.choose(asking("p1")) is None


def test_heads_of_the_model_are_split_over_the_ranks() -> None:
    target = msgspec.structs.replace(split_layouts(1)[0])
    total = target.layers[0].num_kv_heads
    layouts = source_heads(replica("p0", 1, 1), target)
    assert [head for layout in layouts for head in layout.heads] == list(range(total))
