"""What one rank computes in one step: pure functions from a small view of its sequences.

Decode rows come first, one token each, so that a long prompt never holds up running answers for
more than one step. Prompt tokens follow in arrival order under the step's budget. Where the tokens
come from, and what happens to a preempted sequence next, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.plans import Chunk, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWork:
    """A sequence with prompt tokens left to compute; the last prompt token is not one of them.

    Attributes:
        sequence_id: Which sequence.
        order: Place in the line, lower is older; kept over a preemption.
        num_computed_tokens: Tokens whose KV exists, cached ones included [tokens].
        num_remaining_tokens: Tokens still to compute, at least one [tokens].
        num_blocks: Blocks held; those past the computed tokens need no new ones.
        num_reclaimable_blocks: Blocks that preempting it would make available.
    """

    sequence_id: str
    order: int
    num_computed_tokens: int
    num_remaining_tokens: int
    num_blocks: int
    num_reclaimable_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A sequence whose next token is an ordinary decode step.

    Attributes:
        sequence_id: Which sequence.
        order: Place in the line, lower is older; kept over a preemption.
        num_tokens: Tokens whose KV exists [tokens].
        num_blocks: Blocks held.
        num_reclaimable_blocks: Blocks that preempting it would make available.
    """

    sequence_id: str
    order: int
    num_tokens: int
    num_blocks: int
    num_reclaimable_blocks: int

    def growth_blocks(self, block_size: int) -> int:
        """Blocks that the next token needs: one when the held ones are full."""
        return int(self.num_tokens >= self.num_blocks * block_size)


def plan_prefill(
    prompts: Sequence[PromptWork], *, max_tokens: int, free_blocks: int, block_size: int
) -> tuple[Chunk, ...]:
    """Choose the prompt tokens to compute in the next step, first come, first served.

    The line is walked in the order given and each prompt is granted as many of its remaining
    tokens as both budgets allow. The walk stops at the first that cannot be served in full: a
    long prompt is split over several steps but never overtaken.

    Args:
        prompts: Prompts with work left, oldest first. Not modified.
        max_tokens: Compute budget of the step [tokens]; bounds how long decodes beside it wait.
        free_blocks: Blocks that the pool can hand out now.
        block_size: Tokens of a block [tokens].

    Returns:
        Grants in the order of the line, possibly none.

    Guarantees:
        * The sum of ``num_tokens`` is at most ``max_tokens``.
        * The blocks needed beyond those held number at most ``free_blocks``.
        * At most one prompt, the last granted, gets less than it still owes.
        * Nothing is left ungranted while both budgets allow one more token of the first prompt
          not served in full.

    Cost:
        O(number of grants); the tail of a long line is never visited.

    Source:
        Chunked prefill after Sarathi-Serve (arXiv 2403.02310, section 4).

    Example:
        >>> line = [
        ...     PromptWork(
        ...         sequence_id=name,
        ...         order=place,
        ...         num_computed_tokens=done,
        ...         num_remaining_tokens=left,
        ...         num_blocks=done // 16,
        ...     )
        ...     for place, (name, done, left) in enumerate([("a", 64, 32), ("b", 0, 100)])
        ... ]
        >>> for grant in plan_prefill(line, max_tokens=64, free_blocks=8, block_size=16):
        ...     print(grant.sequence_id, grant.start, grant.num_tokens)
        a 64 32
        b 0 32
    """
    grants: list[Chunk] = []
    for work in prompts:
        held = work.num_blocks * block_size - work.num_computed_tokens
        room = min(max_tokens, held + free_blocks * block_size)
        num_tokens = min(work.num_remaining_tokens, room)
        if num_tokens <= 0:
            break
        grants.append(Chunk(work.sequence_id, work.num_computed_tokens, num_tokens))
        max_tokens -= num_tokens
        free_blocks -= max(0, -(-(num_tokens - held) // block_size))
        if num_tokens < work.num_remaining_tokens:
            break
    return tuple(grants)


def plan_step(
    running: Sequence[Running],
    prompts: Sequence[PromptWork],
    *,
    max_prompt_tokens: int,
    free_blocks: int,
    block_size: int,
) -> StepPlan:
    """Choose one step of a decode or mono rank, and whom to preempt where blocks run short.

    Every running sequence gets its one token. Where their growth needs more blocks than are
    free, the newest sequences, running or with prompt work, give up theirs until the rest fits.
    Prompt chunks then share what is left, as ``plan_prefill`` has it.

    Args:
        running: Sequences to decode, in any order. Not modified.
        prompts: Sequences with prompt tokens to compute here, in any order. Not modified.
        max_prompt_tokens: Prompt tokens of one step at most [tokens]; decode rows are not counted.
        free_blocks: Blocks that the pool can hand out now.
        block_size: Tokens of a block [tokens].

    Returns:
        The plan; chunks of decode rows oldest first, then prompts oldest first. The engine takes
        preempted blocks back, then reserves one token per decode row and each chunk's tokens.

    Guarantees:
        * The blocks that the chunks need beyond those held number at most ``free_blocks`` plus
          the reclaimable blocks of the preempted.
        * Sequences are preempted newest first, only while running growth does not fit, and never
          the oldest: some sequence always keeps its blocks.
        * Every running sequence is decoded or preempted, save one: the last one left, when it
          needs a block and none is free. It waits for blocks that transfers hold; if none do,
          admission let in what can never fit (see ``admission.check_fits``).
        * Prompt tokens number at most ``max_prompt_tokens``, and no prompt is overtaken.
        * Pure: same arguments, same answer.

    Cost:
        O(n log n) in the sequences held.
    """
    kept: list[Running | PromptWork] = sorted([*running, *prompts], key=lambda each: each.order)
    growth = sum(_growth(each, block_size) for each in kept)
    preempted: list[str] = []
    while growth > free_blocks and len(kept) > 1:
        newest = kept.pop()
        preempted.append(newest.sequence_id)
        growth -= _growth(newest, block_size)
        free_blocks += newest.num_reclaimable_blocks
    rows = [each for each in kept if isinstance(each, Running)]
    if growth > free_blocks:
        rows = []  # one left, and it must wait
        growth = 0
    chunks = plan_prefill(
        [each for each in kept if isinstance(each, PromptWork)],
        max_tokens=max_prompt_tokens,
        free_blocks=free_blocks - growth,
        block_size=block_size,
    )
    decodes = (Chunk(row.sequence_id, row.num_tokens, 1, is_decode=True) for row in rows)
    return StepPlan(chunks=(*decodes, *chunks), preempted=tuple(preempted))


def _growth(each: Running | PromptWork, block_size: int) -> int:
    return each.growth_blocks(block_size) if isinstance(each, Running) else 0
