"""The block pool: who owns which block of a rank's KV cache. Counts and ids, never tensors.

A block is in exactly one state:

    free         nobody's, holds nothing
    cached       nobody's, holds the KV of a known token history: evicted when blocks run short
    referenced   held by one sequence or more; it may be in the prefix index too
    quarantined  given up by its sequence while a writer may still write to it

A referenced block is **pinned** while it waits for KV that a peer has yet to deliver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.kvcache.free_runs import FreeRuns
from headrace.kvcache.prefix import PrefixHit, PrefixIndex


@dataclass(slots=True)
class PoolCounters:
    """Monotonic counts of one pool.

    Attributes:
        allocated_blocks: Blocks handed out.
        evicted_blocks: Cached blocks given up for want of free ones.
        quarantined_blocks: Blocks that went into quarantine.
        opened_tokens: Tokens of the prompts that block tables were opened for.
        cached_tokens: Of these, tokens whose KV was cached.
    """

    allocated_blocks: int = 0
    evicted_blocks: int = 0
    quarantined_blocks: int = 0
    opened_tokens: int = 0
    cached_tokens: int = 0


class BlockPool:
    """Hands out blocks and takes them back. One thread, no locks, nothing that waits.

    Misuse (a block released twice, a pinned block let go) raises ``ValueError`` and changes
    nothing: it is a fault of the caller, not a state to handle.

    Args:
        num_blocks: Blocks of the rank's region.
        block_size: Tokens of a block [tokens].
        pinned_fraction: Part of the pool that may wait for KV not yet arrived.
        prefix_cache: Keep complete blocks for reuse; without it every match is empty.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        pinned_fraction: float = 0.5,
        prefix_cache: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_pinned = max(1, int(num_blocks * pinned_fraction))
        self.counters = PoolCounters()
        self.index = PrefixIndex(block_size)
        self.prefix_cache = prefix_cache
        self._free = FreeRuns(num_blocks)
        self._references = [0] * num_blocks
        self._cached: dict[int, None] = {}  # unreferenced blocks of the index, oldest first
        self._pinned: set[int] = set()
        self._quarantined: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out now: free ones and evictable cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that hold reusable KV and that nobody references."""
        return len(self._cached)

    @property
    def num_pinned(self) -> int:
        """Blocks that wait for KV not yet arrived."""
        return len(self._pinned)

    @property
    def num_quarantined(self) -> int:
        """Blocks whose last writer may still write."""
        return len(self._quarantined)

    @property
    def is_idle(self) -> bool:
        """Whether every block can be handed out: nothing is held, pinned or quarantined."""
        return self.num_free == self.num_blocks

    def match(self, token_ids: Sequence[int]) -> PrefixHit:
        """Find the cached prefix of a prompt; see ``PrefixIndex.match``. Retains nothing."""
        if not self.prefix_cache:
            return PrefixHit([], 0)
        return self.index.match(token_ids)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Hand out blocks, each with one reference, or None when there are not enough.

        Contiguous ids are preferred. Cached blocks are evicted only for want of free ones, the
        longest unused first and a block's descendants before it.

        Guarantees:
            * All or nothing: on None the pool is as it was, cached blocks included.
        """
        if num_blocks > self.num_free:
            return None
        while len(self._free) < num_blocks:
            self._evict_one()
        block_ids = self._free.take(num_blocks)
        for block_id in block_ids:
            self._references[block_id] = 1
        self.counters.allocated_blocks += num_blocks
        return block_ids

    def retain(self, block_ids: Iterable[int]) -> None:
        """Add a reference to blocks that are referenced or cached."""
        block_ids = list(block_ids)
        for block_id in block_ids:
            if not self._references[block_id] and block_id not in self._cached:
                raise ValueError(f"block {block_id} is neither referenced nor cached")
        for block_id in block_ids:
            self._cached.pop(block_id, None)
            self._references[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each block, given in token order.

        Blocks that nobody references any more become cached if the index knows them, else free.
        The last ones count as longest unused, so that a history is evicted from its end.

        Raises:
            ValueError: Not referenced, or the last reference of a pinned block: its writer may
                still write, so it must be unpinned (KV complete) or quarantined (given up).
        """
        self._check_held(block_ids)
        for block_id in block_ids:
            if self._references[block_id] == 1 and block_id in self._pinned:
                raise ValueError(f"block {block_id} is pinned: unpin or quarantine it instead")
        # From the end, so that evicting finds a leaf at once and need not walk down to one.
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            self._settle(block_id)

    def can_pin(self, num_blocks: int) -> bool:
        """Whether so many more blocks may wait for KV.

        A prompt larger than the cap may wait alone, or it could never start.
        """
        return not self._pinned or self.num_pinned + num_blocks <= self.max_pinned

    def pin(self, block_ids: Sequence[int]) -> None:
        """Count referenced blocks as waiting for KV not yet arrived."""
        self._check_held(block_ids)
        self._pinned.update(block_ids)

    def unpin(self, block_ids: Iterable[int]) -> None:
        """The KV of these blocks is complete, and nobody will write to them from outside."""
        self._pinned.difference_update(block_ids)

    def quarantine(self, block_ids: Sequence[int]) -> None:
        """Turn one reference of each block into quarantine: its writer may still write.

        The blocks are unpinned, leave the prefix index, and are handed out again only after
        ``release_quarantined``.
        """
        self._check_held(block_ids)
        if not self._quarantined.isdisjoint(block_ids):
            raise ValueError(f"already quarantined: {sorted(self._quarantined & {*block_ids})}")
        for block_id in block_ids:
            self._references[block_id] -= 1
            if block_id in self.index:
                self.index.remove(block_id)
        self._pinned.difference_update(block_ids)
        self._quarantined.update(block_ids)
        self.counters.quarantined_blocks += len(block_ids)

    def release_quarantined(self, block_ids: Sequence[int]) -> None:
        """The last writer of these blocks is known to be quiet or dead."""
        if not self._quarantined.issuperset(block_ids) or len(set(block_ids)) < len(block_ids):
            raise ValueError(f"not quarantined, or named twice: {list(block_ids)}")
        for block_id in block_ids:
            self._quarantined.remove(block_id)
            self._settle(block_id)

    def num_references(self, block_id: int) -> int:
        """How many sequences hold the block."""
        return self._references[block_id]

    def num_idle(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks ``retain`` would take out of ``num_free``."""
        return sum(block_id in self._cached for block_id in block_ids)

    def publish(self, block_id: int, *, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Enter a full block with complete KV into the prefix index; see ``PrefixIndex.insert``.

        Raises:
            ValueError: The block is not referenced, or its KV has not arrived.
        """
        self._check_held([block_id])
        if block_id in self._pinned or block_id in self._quarantined:
            raise ValueError(f"block {block_id} still has a writer")
        return self.index.insert(block_id, parent=parent, token_ids=token_ids)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` unless every block is in exactly one state.

        O(num_blocks): called by tests after every operation and by ranks when they fall idle.
        """
        self.index.check_invariants()
        free = self._free.ids()
        for block_id, references in enumerate(self._references):
            states = (
                block_id in free,
                block_id in self._cached,
                references > 0 or block_id in self._quarantined,
            )
            if sum(states) != 1 or references < 0:
                raise AssertionError(f"block {block_id}: {states}, {references} references")
            if block_id in self._cached and block_id not in self.index:
                raise AssertionError(f"cached block {block_id} is not in the index")
            if block_id in free and block_id in self.index:
                raise AssertionError(f"free block {block_id} is in the index")
            if block_id in self._pinned and not references:
                raise AssertionError(f"pinned block {block_id} is not referenced")
        if len(free) != len(self._free):
            raise AssertionError(f"{len(free)} free blocks, counted {len(self._free)}")

    def _evict_one(self) -> None:
        oldest = next(iter(self._cached))
        block_id = self.index.leaf_below(oldest, self._cached)
        del self._cached[block_id]
        self.index.remove(block_id)
        self._free.add(block_id)
        self.counters.evicted_blocks += 1

    def _settle(self, block_id: int) -> None:
        if self._references[block_id] or block_id in self._quarantined:
            return
        if block_id in self.index:
            self._cached[block_id] = None
        else:
            self._free.add(block_id)

    def _check_held(self, block_ids: Sequence[int]) -> None:
        if len(set(block_ids)) < len(block_ids):
            raise ValueError(f"blocks named twice: {list(block_ids)}")
        for block_id in block_ids:
            if not self._references[block_id]:
                raise ValueError(f"block {block_id} is not referenced")
