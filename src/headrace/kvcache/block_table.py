"""One sequence's blocks: which hold shared history, which are its own, where the next token goes.

Full blocks may be shared with the prefix cache and with sister choices and are never written
again. The block that takes the next token is always the sequence's own: where it would be shared
(a prompt cached whole, a fork in mid-block) its contents are copied into a fresh block first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.kvcache.pool import BlockPool
from headrace.kvcache.prefix import ROOT, PrefixHit


class BlockCopy(NamedTuple):
    """The KV of one block to copy, in every layer, before the target is written."""

    source: int
    target: int


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return the blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def blocks_to_open(pool: BlockPool, hit: PrefixHit, num_tokens: int) -> int:
    """Return how far ``num_free`` falls, at least, when a table is opened.

    Counts fresh blocks and cached ones that nobody references yet. The source of a copy is left
    out, because ``BlockTable.open`` does without it when blocks are short.

    Args:
        pool: The pool; not changed.
        hit: Cached prefix of the prompt.
        num_tokens: Tokens the table shall have blocks for, the prompt's last one included.
    """
    shared = hit.block_ids[: hit.num_tokens // pool.block_size]
    fresh = blocks_for(num_tokens, pool.block_size) - len(shared)
    return fresh + pool.num_idle(shared)


class BlockTable:
    """Blocks of one sequence in token order.

    Made by ``open`` or ``fork``; ends by ``release`` or ``quarantine``, exactly once.

    Attributes:
        num_tokens: Tokens whose KV exists (or will, once a receive session completes).
        copies: Copies to run before the sequence's next token or transfer is written; the
            sources stay referenced until ``finish_copies``.
    """

    def __init__(self, pool: BlockPool, block_ids: list[int], *, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.copies: list[BlockCopy] = []
        self._pool = pool
        self._block_ids = block_ids
        self._num_shared = num_tokens // pool.block_size
        self._hashes: list[bytes] = []

    @classmethod
    def open(cls, pool: BlockPool, hit: PrefixHit, num_tokens: int) -> BlockTable | None:
        """Take the cached blocks of a prompt and fresh ones for the rest of it.

        Args:
            pool: Where blocks come from.
            hit: Cached prefix, matched since the pool last changed.
            num_tokens: Tokens to have blocks for: the prompt, its last token included.

        Returns:
            The table, with the cached tokens as ``num_tokens``; None when blocks are short, and
            then the pool is as it was.

        Guarantees:
            * Succeeds whenever ``blocks_to_open(...) <= pool.num_free``: a block that would be
              used in part only to save its copy is then not used, and fewer tokens are cached.
        """
        num_full = hit.num_tokens // pool.block_size
        shared, part = hit.block_ids[:num_full], hit.block_ids[num_full:]
        num_fresh = blocks_for(num_tokens, pool.block_size) - num_full
        pool.retain(hit.block_ids)
        fresh = pool.allocate(num_fresh)
        if fresh is None and part:
            pool.release(part)
            part = []
            fresh = pool.allocate(num_fresh)
        if fresh is None:
            pool.release([*shared, *part])
            return None
        num_cached = hit.num_tokens if part else num_full * pool.block_size
        table = cls(pool, [*shared, *fresh], num_tokens=num_cached)
        table.copies = [BlockCopy(source, fresh[0]) for source in part]
        pool.counters.opened_tokens += num_tokens
        pool.counters.cached_tokens += num_cached
        return table

    @property
    def block_ids(self) -> list[int]:
        """All blocks in token order. Do not change the list."""
        return self._block_ids

    @property
    def own_block_ids(self) -> list[int]:
        """Blocks not taken from the cache or a sister: the targets of a transfer."""
        return self._block_ids[self._num_shared :]

    @property
    def capacity(self) -> int:
        """Tokens that the blocks held can take [tokens]."""
        return len(self._block_ids) * self._pool.block_size

    @property
    def num_reclaimable_blocks(self) -> int:
        """Blocks that ``release`` would make free or evictable: those nobody else references."""
        return sum(self._pool.num_references(block_id) == 1 for block_id in self._block_ids)

    def blocks_to_append(self, num_tokens: int) -> int:
        """Return the blocks missing for ``num_tokens`` more tokens."""
        wanted = blocks_for(self.num_tokens + num_tokens, self._pool.block_size)
        return max(0, wanted - len(self._block_ids))

    def reserve(self, num_tokens: int) -> bool:
        """Hold blocks for ``num_tokens`` more tokens; False, changing nothing, when short."""
        fresh = self._pool.allocate(self.blocks_to_append(num_tokens))
        if fresh is None:
            return False
        self._block_ids.extend(fresh)
        return True

    def advance(self, num_tokens: int) -> None:
        """The KV of the next ``num_tokens`` tokens exists now."""
        if self.num_tokens + num_tokens > self.capacity:
            raise ValueError(
                f"{self.num_tokens} + {num_tokens} tokens do not fit {len(self._block_ids)} blocks"
            )
        self.num_tokens += num_tokens

    def publish(self, token_ids: Sequence[int]) -> None:
        """Enter full blocks with complete KV into the prefix cache, those not yet entered.

        Args:
            token_ids: The sequence's tokens from position 0, at least ``num_tokens`` of them.
                The same tokens must be given every time.
        """
        if not self._pool.prefix_cache:
            return
        size = self._pool.block_size
        for index in range(len(self._hashes), self.num_tokens // size):
            self._hashes.append(
                self._pool.publish(
                    self._block_ids[index],
                    parent=self._hashes[-1] if self._hashes else ROOT,
                    token_ids=token_ids[index * size : (index + 1) * size],
                )
            )

    def fork(self) -> BlockTable | None:
        """Make the table of a sister choice; None, changing nothing, when blocks are short.

        Full blocks are shared, a part-full one is copied, reserved ones behind it are not taken.
        """
        num_full, rest = divmod(self.num_tokens, self._pool.block_size)
        fresh = self._pool.allocate(1 if rest else 0)
        if fresh is None:
            return None
        held = self._block_ids[: num_full + bool(rest)]
        self._pool.retain(held)
        sister = BlockTable(self._pool, held[:num_full] + fresh, num_tokens=self.num_tokens)
        sister._hashes = self._hashes[:]
        sister.copies = [BlockCopy(*pair) for pair in zip(held[num_full:], fresh, strict=True)]
        return sister

    def finish_copies(self) -> None:
        """The copies are done: let go of their sources."""
        self._pool.release([copy.source for copy in self.copies])
        self.copies = []

    def release(self) -> None:
        """Give all blocks back; complete ones that were published stay cached."""
        self.finish_copies()
        self._pool.release(self._block_ids)
        self._block_ids = []

    def quarantine(self) -> list[int]:
        """Give all blocks back while a peer may still write to the sequence's own.

        Returns:
            The blocks now in quarantine, for ``BlockPool.release_quarantined`` once the writer is
            known to be quiet.
        """
        self.finish_copies()
        own = self.own_block_ids
        self._pool.quarantine(own)
        self._pool.release(self._block_ids[: self._num_shared])
        self._block_ids = []
        return own
