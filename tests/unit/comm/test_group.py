"""A group of one behaves like any other group, without a segment."""

import pytest
import torch

from headrace.comm.group import SingleGroup, check_word
from headrace.core.errors import ReplicaError


def test_single_group_gathers_its_own_tensor_as_a_copy():
    group = SingleGroup()
    x = torch.arange(6).view(2, 3)
    gathered = group.all_gather(x)
    assert gathered.tolist() == [x.tolist()]
    gathered.zero_()
    assert x.sum() == 15


def test_single_group_keeps_its_own_part():
    part = torch.ones(0, 4)
    assert SingleGroup().all_to_all([part])[0] is part
    with pytest.raises(ValueError, match="too many values"):
        SingleGroup().all_to_all([part, part])


def test_single_group_agrees_with_itself():
    group = SingleGroup()
    group.barrier()
    assert (group.rank, group.size, group.agree(7)) == (0, 1, [7])


@pytest.mark.parametrize("leave", ["close", "abort"])
def test_a_single_group_that_was_left_refuses_collectives(leave):
    group = SingleGroup()
    getattr(group, leave)()
    with pytest.raises(ReplicaError, match="rank 0 has left"):
        group.barrier()


@pytest.mark.parametrize("word", [-1, 1 << 64])
def test_words_outside_64_bits_are_refused(word):
    with pytest.raises(ValueError, match=str(word)):
        check_word(word)
