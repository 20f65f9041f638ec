"""What a group of ranks can do together, as the model and the engine see it.

A **collective** is a call that every rank of the group makes, in the same order. An **exchange**
is one round trip between all ranks; a large collective takes several. One thread per rank calls a
group; ``abort`` alone may come from any thread. Implementations lie beside this file.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from headrace.core.errors import ReplicaError

WORD_LIMIT = 1 << 64


class Group(Protocol):
    """Ranks that run equal sequences of collectives.

    Raises:
        ReplicaError: From any collective: a rank is missing, left, died, or runs another
            collective. The message names the ranks. The group is then broken for good: close it.
    """

    @property
    def rank(self) -> int:
        """This rank's index in the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Collect one tensor from every rank.

        Args:
            x: Any dtype; same shape and dtype on every rank. Read only.

        Returns:
            ``[size, *x.shape]`` in rank order; owned by the caller.
        """
        ...

    def all_to_all(self, parts: list[Tensor]) -> list[Tensor]:
        """Send ``parts[d]`` to rank d and receive one part from every rank.

        Args:
            parts: One tensor per rank, ``[rows, ...]`` with any row count (zero too), any dtype;
                dtype and trailing shape are the same for all parts of all ranks. Read only.

        Returns:
            What ranks 0, 1, ... sent here, same dtype and trailing shape. The part of this rank
            is ``parts[rank]`` itself, not a copy; the others are owned by the caller.
        """
        ...

    def agree(self, word: int) -> list[int]:
        """Tell every rank one word: the cheapest exchange, for the lockstep of decode ranks.

        Args:
            word: In ``[0, 2**64)``.

        Returns:
            Every rank's word, in rank order.
        """
        ...

    def barrier(self) -> None:
        """Return once every rank has come here."""
        ...

    def abort(self) -> None:
        """Make this rank's and every other rank's pending and later collectives fail at once."""
        ...

    def close(self) -> None:
        """Leave the group and free its memory; idempotent. Ranks still waiting here fail."""
        ...


class SingleGroup:
    """A group of one rank: every collective returns at once."""

    def __init__(self) -> None:
        self._is_open = True

    @property
    def rank(self) -> int:
        """Always 0."""
        return 0

    @property
    def size(self) -> int:
        """Always 1."""
        return 1

    def all_gather(self, x: Tensor) -> Tensor:
        """Return ``x`` copied under a leading axis of 1."""
        self._check_open()
        return x.clone().unsqueeze(0)

    def all_to_all(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the one part itself."""
        self._check_open()
        (part,) = parts
        return [part]

    def agree(self, word: int) -> list[int]:
        """Return the own word."""
        self._check_open()
        return [check_word(word)]

    def barrier(self) -> None:
        """Return at once."""
        self._check_open()

    def abort(self) -> None:
        """Make later collectives fail."""
        self._is_open = False

    def close(self) -> None:
        """Make later collectives fail."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise ReplicaError("rank 0 has left its group")


def check_word(word: int) -> int:
    """Return ``word``, or raise ``ValueError`` if it is no unsigned 64-bit number."""
    if not 0 <= word < WORD_LIMIT:
        raise ValueError(f"word {word}: expected 0 <= word < 2**64")
    return word
