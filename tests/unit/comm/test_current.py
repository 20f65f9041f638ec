"""A model calls one group all its life; which one answers is the generation's affair."""

import pytest
import torch

from headrace.comm.current import CurrentGroup
from headrace.comm.group import SingleGroup
from headrace.core.errors import ReplicaError


def test_calls_go_to_the_group_of_the_present_generation():
    current = CurrentGroup(rank=0, size=1)
    with pytest.raises(ReplicaError, match="rank 0 has not joined a group yet"):
        current.barrier()
    current.close()
    first, second = SingleGroup(), SingleGroup()
    current.replace(first)
    x = torch.arange(3)
    assert torch.equal(current.all_gather(x), x[None])
    (part,) = current.all_to_all([x])
    assert part is x
    assert current.agree(7) == [7]
    current.barrier()
    current.close()
    with pytest.raises(ReplicaError):
        current.barrier()
    current.replace(second)
    current.barrier()
    current.abort()
    with pytest.raises(ReplicaError):
        second.barrier()


def test_a_group_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="rank 0 of 1: expected rank 1 of 2"):
        CurrentGroup(rank=1, size=2).replace(SingleGroup())
