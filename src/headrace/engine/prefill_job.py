"""One session as the lead of a prefill replica keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.messages import PrefillRequest
from headrace.kvcache.block_table import BlockTable


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One session, from request to the last rank's ``SendDone``.

    Attributes:
        request: The decoder's request.
        order: Place in the line.
        arrived_s: When it came [s].
        table: The replica's blocks for the prompt, once the session has any.
        compute_s: Time of steps that computed its tokens [s].
        draining: Ranks that may still read its blocks.
    """

    request: PrefillRequest
    order: int
    arrived_s: float
    table: BlockTable | None = None
    compute_s: float = 0.0
    draining: set[int] = field(default_factory=set)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that shall have KV: all but the prompt's last."""
        return len(self.request.token_ids) - 1

    @property
    def num_missing_tokens(self) -> int:
        """Tokens still to compute."""
        return self.num_prompt_tokens - (self.table.num_tokens if self.table else 0)
