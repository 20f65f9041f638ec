"""The words in which calls find out whether their rank still lives."""

import pytest

from headrace.core.messages import Topology
from headrace.serving.fleet import Placement, absence, addresses, loss_of
from tests.support.serving_fakes import re_forming, topology

AT = Placement(address="ipc://decode0.1.1", replica="decode0", rank=1, generation=1)


@pytest.mark.parametrize(
    ("members", "lost"),
    [
        (topology(), ""),
        (re_forming(topology(), "prefill0", without=[0]), ""),
        (topology(generation=2), "decode rank decode0.1 was started anew"),
        (re_forming(topology(), "decode0", without=[1]), "decode rank decode0.1 died"),
        (
            re_forming(topology(), "decode0", without=[0]),
            "decode replica decode0 re-forms without rank 0",
        ),
        (re_forming(topology(), "decode0"), "decode replica decode0 re-forms"),
        (Topology(replicas=topology().replicas[:1]), "decode replica decode0 is gone"),
    ],
    ids=["there", "other", "restarted", "dead", "sister", "waiting", "gone"],
)
def test_a_rank_loses_its_work_with_its_replicas_generation(members: Topology, lost: str) -> None:
    assert loss_of(AT, members) == lost


def test_what_a_replica_waits_for_is_named() -> None:
    decode = re_forming(topology(), "decode0", without=[0, 1]).replicas[1]
    assert absence(decode) == "re-forms without ranks 0, 1"


def test_addresses_are_those_of_all_roles() -> None:
    assert addresses(topology(prefill_ranks=1, decode_ranks=1)) == {
        "ipc://prefill0.0.1",
        "ipc://decode0.0.1",
    }
