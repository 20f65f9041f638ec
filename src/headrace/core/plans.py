"""Step plans: the scheduler's decision for one step, as plain values that travel."""

from __future__ import annotations

from msgspec import Struct


class Chunk(Struct, frozen=True):
    """A run of one sequence's tokens to compute in a step.

    ``num_tokens == 1`` with ``is_decode`` is an ordinary decode step (the last prompt token is
    one too); otherwise the run fills KV only and yields no logits.

    Attributes:
        sequence_id: Which sequence.
        start: Position of the first token of the run; everything before it has KV.
        num_tokens: Length of the run.
        is_decode: The run's last token yields logits and a sampled token.
    """

    sequence_id: str
    start: int
    num_tokens: int
    is_decode: bool = False


class StepPlan(Struct, frozen=True, kw_only=True):
    """What one rank computes in one step, and what it gave up to make room.

    Attributes:
        chunks: Work in scheduling order, decode runs first.
        preempted: Sequences whose blocks were taken, newest first.
    """

    chunks: tuple[Chunk, ...] = ()
    preempted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(chunk.num_tokens for chunk in self.chunks)
