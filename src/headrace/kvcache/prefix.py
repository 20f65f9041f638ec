"""The prefix index: which full blocks hold the KV of which token history.

A block is known by a hash chained over its parent's hash and its own token ids, so that one
lookup per block finds the longest cached prefix. Only full blocks whose KV is complete enter:
a hit never names state that is still to be computed or received.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

ROOT = bytes(16)  # parent of every first block


class PrefixHit(NamedTuple):
    """Cached tokens of a prompt.

    Attributes:
        block_ids: Blocks that hold them, in token order; the last may be used in part.
        num_tokens: Tokens whose KV exists, always less than the prompt's length [tokens].
    """

    block_ids: list[int]
    num_tokens: int


@dataclass(slots=True)
class PrefixCounters:
    """Monotonic counts of one index; hits are counted by the pool, when they are used.

    Attributes:
        inserted_blocks: Blocks that entered.
        duplicate_blocks: Blocks refused because an equal one was there.
    """

    inserted_blocks: int = 0
    duplicate_blocks: int = 0


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash of a block from its parent's and its own token ids.

    16 bytes of blake2b: a collision would serve one client another's KV, so the hash must
    resist people who look for one, which Python's own does not.
    """
    return blake2b(parent + array("I", token_ids).tobytes(), digest_size=16).digest()


class PrefixIndex:
    """Finds cached blocks by token history. Holds ids only; the pool decides what is evicted.

    Args:
        block_size: Tokens of a block [tokens].
    """

    def __init__(self, block_size: int) -> None:
        self.counters = PrefixCounters()
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._hashes_of: dict[int, tuple[bytes, bytes]] = {}  # block -> (own hash, parent's)
        self._children_of: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return len(self._hashes_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hashes_of

    def match(self, token_ids: Sequence[int]) -> PrefixHit:
        """Find the longest cached prefix of a prompt, short of its last token.

        The last token is always left to compute, since its logits are wanted: a prompt that is
        cached whole hits one token less, and uses its last block in part. Whoever writes that
        token copies the block first (``BlockTable.open`` does).

        Args:
            token_ids: The prompt, at least one token.

        Returns:
            Blocks and tokens; the caller retains the blocks before anything is allocated.

        Guarantees:
            * ``num_tokens < len(token_ids)``.
            * ``len(block_ids) == ceil(num_tokens / block_size)``.

        Cost:
            One hash per matched block, plus one.
        """
        size = self._block_size
        found: list[int] = []
        parent = ROOT
        for start in range(0, len(token_ids) // size * size, size):
            parent = chain_hash(parent, token_ids[start : start + size])
            block_id = self._block_of.get(parent)
            if block_id is None:
                break
            found.append(block_id)
        num_tokens = min(len(found) * size, len(token_ids) - 1)
        return PrefixHit(found[: -(-num_tokens // size)], num_tokens)

    def insert(self, block_id: int, *, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Enter a full block whose KV is complete; an equal block that came first stays.

        Args:
            block_id: Block that holds the KV, referenced by the caller.
            parent: Hash of the block before it in the sequence; ``ROOT`` for the first.
            token_ids: The block's own tokens, ``block_size`` of them.

        Returns:
            The block's hash: parent of the next one.
        """
        if len(token_ids) != self._block_size:
            raise ValueError(f"{len(token_ids)} tokens for a block of {self._block_size}")
        own = chain_hash(parent, token_ids)
        if own in self._block_of or block_id in self._hashes_of:
            self.counters.duplicate_blocks += self._block_of.get(own) != block_id
            return own
        self._block_of[own] = block_id
        self._hashes_of[block_id] = (own, parent)
        self._children_of.setdefault(parent, set()).add(block_id)
        self.counters.inserted_blocks += 1
        return own

    def remove(self, block_id: int) -> None:
        """Forget a block. Its children stay, unreachable until an equal parent is inserted."""
        own, parent = self._hashes_of.pop(block_id)
        del self._block_of[own]
        siblings = self._children_of[parent]
        siblings.remove(block_id)
        if not siblings:
            del self._children_of[parent]

    def leaf_below(self, block_id: int, among: Collection[int]) -> int:
        """Return a descendant of ``block_id`` that has no child ``among`` those given."""
        leaf = block_id
        while True:
            children = self._children_of.get(self._hashes_of[leaf][0], ())
            child = next((each for each in children if each in among), None)
            if child is None:
                return leaf
            leaf = child

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the two directions of the index disagree."""
        forward = {block_id: own for own, block_id in self._block_of.items()}
        backward = {block_id: own for block_id, (own, _) in self._hashes_of.items()}
        if forward != backward:
            raise AssertionError("prefix index: hashes and blocks disagree")
        families = {
            (parent, block_id)
            for parent, children in self._children_of.items()
            for block_id in children
        }
        if families != {(parent, block) for block, (_, parent) in self._hashes_of.items()}:
            raise AssertionError("prefix index: parents and children disagree")
