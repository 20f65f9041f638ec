"""One sequence as its decode rank keeps it, from submission to the last output token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.core.messages import Submit
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
        is_resumed: Was preempted, or could not share its sister's blocks.
        admitted_s: When it last got blocks [s].
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
    admitted_s: float = 0.0
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
    submit: Submit, *, first_order: int, now_s: float, vocab_size: int, text: list[OutputTextStream]
) -> list[Sequence]:
    """Return the choices of a request, choice 0 first.

    Args:
        submit: The request.
        first_order: Place in the line of choice 0.
        now_s: Time of arrival [s].
        vocab_size: Vocabulary of the model, for penalties.
        text: One fresh stream per choice.
    """
    return [
        Sequence(
            sequence_id=f"{submit.request_id}/{choice}",
            submit=submit,
            choice=choice,
            order=first_order + choice,
            token_ids=list(submit.prompt_ids),
            text=text[choice],
            counts=TokenCounts.of(submit.prompt_ids, vocab_size=vocab_size)
            if needs_counts(submit.params)
            else None,
            arrived_s=now_s,
            seed=choice_seed(submit.params.seed, choice),
        )
        for choice in range(submit.num_choices)
    ]
