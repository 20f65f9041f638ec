"""Connections to what left the topology are let go, each once."""

from headrace.core.messages import RankInfo, ReplicaInfo, Topology
from headrace.core.sharding import Role, Sharding
from headrace.engine.acquaintances import Acquaintances


def topology(*addresses: str) -> Topology:
    ranks = [RankInfo(rank=i, generation=1, address=each) for i, each in enumerate(addresses)]
    replica = ReplicaInfo(name="p", role=Role.PREFILL, sharding=Sharding(), ranks=ranks)
    return Topology(replicas=[replica])


def test_only_what_left_is_forgotten():
    forgotten: list[str] = []
    known = Acquaintances(forgotten.append)
    assert known.update(topology("a", "b")) == set()
    assert known.update(topology("b", "c")) == {"a"}
    assert known.update(topology("b", "c")) == set()
    assert known.update(topology()) == {"b", "c"}
    assert sorted(forgotten) == ["a", "b", "c"]
