"""A group that can be exchanged under the model that uses it.

A model is built once and keeps its weights while its replica re-forms; the group of each
generation is another one.
"""

from __future__ import annotations

from torch import Tensor

from headrace.comm.group import Group
from headrace.core.errors import ReplicaError


class CurrentGroup:
    """A ``Group`` that passes every call on to the group of the present generation.

    Args:
        rank: This rank's index; the same in every generation.
        size: Ranks of the group; the same in every generation.
    """

    def __init__(self, *, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._group: Group | None = None

    def replace(self, group: Group) -> None:
        """Use ``group`` from now on; the last one is closed or will be by its owner."""
        if (group.rank, group.size) != (self._rank, self._size):
            raise ValueError(
                f"rank {group.rank} of {group.size}: expected rank {self._rank} of {self._size}"
            )
        self._group = group

    @property
    def rank(self) -> int:
        """See ``Group.rank``."""
        return self._rank

    @property
    def size(self) -> int:
        """See ``Group.size``."""
        return self._size

    def all_gather(self, x: Tensor) -> Tensor:
        """See ``Group.all_gather``."""
        return self._present().all_gather(x)

    def all_to_all(self, parts: list[Tensor]) -> list[Tensor]:
        """See ``Group.all_to_all``."""
        return self._present().all_to_all(parts)

    def agree(self, word: int) -> list[int]:
        """See ``Group.agree``."""
        return self._present().agree(word)

    def barrier(self) -> None:
        """See ``Group.barrier``."""
        self._present().barrier()

    def abort(self) -> None:
        """See ``Group.abort``."""
        self._present().abort()

    def close(self) -> None:
        """Close the present group; ``replace`` may follow. Idempotent."""
        if self._group is not None:
            self._group.close()

    def _present(self) -> Group:
        if self._group is None:
            raise ReplicaError(f"rank {self._rank} has not joined a group yet")
        return self._group
