"""What a rank runs its steps on: a model, or a script of tokens.

A backend owns the views of the KV region and whatever turns rows into logits. The rank above it
knows sequences, blocks and sessions; the backend knows none of them.

Shape letters: L = rows that yield logits, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headrace.core.layouts import CacheLayout, KvSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence's part of a step.

    Attributes:
        token_ids: The run's tokens.
        start: Position of the first of them; everything before has KV in ``block_ids``.
        block_ids: The sequence's blocks from position 0, enough for the run.
        wants_logits: The run's last token yields a row of logits.
        num_prompt_tokens: Prompt length (the replay back end plays from there).
        ordinal: Running number of the request (the replay back end plays by it).
    """

    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    wants_logits: bool
    num_prompt_tokens: int = 0
    ordinal: int = 0


class Backend(Protocol):
    """Runs steps over one rank's KV region. Not thread-safe: one rank, one caller."""

    schemas: tuple[KvSchema, ...]
    vocab_size: int
    # The pool is the backend's own: ``allocate`` makes it, and no region of the rank's is attached.
    owns_memory: bool

    def allocate(self, layout: CacheLayout) -> None:
        """Make the KV pool, where ``owns_memory``."""
        ...

    def attach(self, region: memoryview, *, num_blocks: int, block_size: int) -> None:
        """View ``region`` (laid out as ``core.layouts`` says) as this backend's KV pool."""
        ...

    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Compute one step.

        Args:
            rows: The step's runs; may be empty, and then takes part in collectives only.
            on_layer: Called with each layer's index once its KV of all rows is written.

        Returns:
            fp32 logits [L, V], one row per run that wants them, in row order.
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block over all layers and heads (copy-on-write of a shared block)."""
        ...

    def kv_digests(self, block_ids: Sequence[int], num_tokens: int) -> list[list[bytes]]:
        """Digest the KV of the first ``num_tokens`` tokens: per layer, one per 16 tokens."""
        ...

    def close(self) -> None:
        """Let go of the region's views, so that it can be unmapped."""
        ...
