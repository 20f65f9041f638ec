"""One sequence as its decode rank keeps it, from submission to the last output token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from headrace.core.messages import Resumed, Submit
from headrace.core.requests import Ledger
from headrace.kernels.sampling import TokenCounts, choice_seed, needs_counts
from headrace.kvcache.block_table import BlockTable
from headrace.text.output import OutputTextStream


class Phase(Enum):
    """Where a sequence stands; who owns its blocks follows from it.

    WAITING     holds no blocks
    RECEIVING   holds blocks that a prefiller writes to
    COMPUTING   holds blocks, its prompt is computed here in chunks
    RUNNING     has KV of all its tokens but the last: decodes
    FINISHED    gave its blocks back (or they are in quarantine)
    """

    WAITING = auto()
    RECEIVING = auto()
    COMPUTING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One choice of a request.

    Sampler, text and ledger state survive a preemption: a resumed sequence goes on as if nothing
    had happened, since its noise is keyed by (seed, position).

    Attributes:
        sequence_id: ``request_id/choice``.
        submit: The request as it came.
        choice: Index among the request's choices.
        order: Place in the line, kept over a preemption.
        token_ids: Prompt and output tokens.
        text: Detokenizer, stop strings and reasoning count.
        counts: Token counts for penalties, where any are asked for.
        arrived_s: When the request came [s].
        phase: See ``Phase``.
        table: The sequence's blocks, from admission on.
        session_id: Transfer session that fills the blocks, while RECEIVING.
        is_resumed: Was preempted, could not share its sister's blocks, or goes on here after the
            rank that it ran on was lost.
        failed_replicas: Prefill replicas that did not bring its KV when they were asked.
        is_outgrown: With its output it no longer fits a prefiller: it is computed here.
        owes_ledger: The edge has yet to hear what bringing its KV took, this time.
        admitted_s: When it last got blocks [s].
        chunk_s: When the chunks of its prompt that are on their way began [s].
        running_s: When it last began to decode [s].
        seed: Key of its noise, with the position.
        ledger: The request's one record.
    """

    sequence_id: str
    submit: Submit
    choice: int
    order: int
    token_ids: list[int]
    text: OutputTextStream
    counts: TokenCounts | None
    arrived_s: float
    phase: Phase = Phase.WAITING
    table: BlockTable | None = None
    session_id: str = ""
    is_resumed: bool = False
    failed_replicas: set[str] = field(default_factory=set)
    is_outgrown: bool = False
    owes_ledger: bool = True
    admitted_s: float = 0.0
    chunk_s: float = 0.0
    running_s: float = 0.0
    seed: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the request's prompt."""
        return len(self.submit.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def blocks(self) -> BlockTable:
        """The block table of a sequence that holds blocks."""
        if self.table is None:
            raise AssertionError(f"{self.sequence_id} holds no blocks in {self.phase}")
        return self.table

    @property
    def num_missing_tokens(self) -> int:
        """Tokens without KV, short of the last one, which is always a decode step."""
        return len(self.token_ids) - 1 - self.blocks.num_tokens


def make_sequences(
    submit: Submit,
    *,
    first_order: int,
    now_s: float,
    vocab_size: int,
    open_text: Callable[[], OutputTextStream],
) -> list[Sequence]:
    """Return the choices of a request that are to run here, lowest index first.

    A choice that goes on elsewhere stands where its client is: its tokens, penalties and text are
    as if it had been sampled here, what was shown is not shown again, and limits count from the
    request's own prompt.

    Args:
        submit: The request.
        first_order: Place in the line of the first choice.
        now_s: Time of arrival [s].
        vocab_size: Vocabulary of the model, for penalties.
        open_text: Returns a fresh stream.
    """
    chosen = submit.resumed or [
        Resumed(choice=choice, output_ids=[]) for choice in range(submit.num_choices)
    ]
    return [
        _make_sequence(
            submit,
            resumed,
            order=first_order + place,
            now_s=now_s,
            vocab_size=vocab_size,
            text=open_text(),
        )
        for place, resumed in enumerate(sorted(chosen, key=lambda each: each.choice))
    ]


def _make_sequence(
    submit: Submit,
    resumed: Resumed,
    *,
    order: int,
    now_s: float,
    vocab_size: int,
    text: OutputTextStream,
) -> Sequence:
    for token_id in resumed.output_ids:
        text.push(token_id)
    counts = None
    if needs_counts(submit.params):
        counts = TokenCounts.of(submit.prompt_ids, resumed.output_ids, vocab_size=vocab_size)
    return Sequence(
        sequence_id=f"{submit.request_id}/{resumed.choice}",
        submit=submit,
        choice=resumed.choice,
        order=order,
        token_ids=[*submit.prompt_ids, *resumed.output_ids],
        text=text,
        counts=counts,
        arrived_s=now_s,
        is_resumed=bool(resumed.output_ids),
        seed=choice_seed(submit.params.seed, resumed.choice),
        ledger=msgspec.structs.replace(
            resumed.ledger,
            output_tokens=len(resumed.output_ids),
            num_retries=submit.num_retries,
        ),
    )


def line_groups(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Return who waits together: a leader whose prompt is brought, and those who share it.

    Choices with output of their own have a prompt of their own.
    """
    sharing = [each for each in sequences if not each.is_resumed]
    alone = [[each] for each in sequences if each.is_resumed]
    return [sharing, *alone] if sharing else alone
