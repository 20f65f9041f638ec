"""What a prefill replica lets in: each session once, and only what it can compute and send.

Requests come from other processes, and their numbers become indices into tables and regions. They
are judged here, before a block is taken; behind the gate they are believed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.errors import IllegalPlanError
from headrace.core.layouts import CacheLayout
from headrace.core.messages import PrefillRequest
from headrace.engine.ids import outside
from headrace.transfer.legality import check_layouts

# Sessions that are remembered when they are over; a repeat comes soon or never.
MAX_REMEMBERED = 16384
# Offsets are signed 64-bit numbers wherever they are computed or sent.
_MAX_REGION_BYTES = 2**62
_MAX_ID = 2**64


class PrefillGate:
    """Judges the requests that come to one prefill replica.

    Args:
        layouts: KV layout of every rank of the replica.
        vocab_size: Tokens of the model's vocabulary.
        max_model_tokens: Longest prompt that the replica may hold [tokens].
    """

    def __init__(
        self, *, layouts: Sequence[CacheLayout], vocab_size: int, max_model_tokens: int
    ) -> None:
        self._layouts = tuple(layouts)
        self._vocab_size = vocab_size
        self._max_model_tokens = max_model_tokens
        self._remembered: dict[str, None] = {}

    def is_new(self, session_id: str) -> bool:
        """Whether the session was never remembered."""
        return session_id not in self._remembered

    def remember(self, session_id: str) -> None:
        """Let no other request of this name in."""
        self._remembered[session_id] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def refusal(self, request: PrefillRequest) -> str:
        """Return why a request cannot be served, in one line; empty if it can.

        Cost:
            A few passes over its numbers, none of them in Python.
        """
        return self._of_prompt(request) or self._of_target(request)

    def _of_prompt(self, request: PrefillRequest) -> str:
        token_ids, num_tokens = request.token_ids, len(request.token_ids)
        if num_tokens < 2:
            return f"a prompt of {num_tokens} tokens: one of 2 or more has KV to bring"
        if num_tokens > self._max_model_tokens:
            return (
                f"a prompt of {num_tokens} tokens does not fit the prefill replica's context of "
                f"{self._max_model_tokens}: serve it with a larger max_model_tokens"
            )
        capacity = self._layouts[0].num_blocks * self._layouts[0].block_size
        if num_tokens - 1 > capacity:
            return (
                f"a prompt of {num_tokens} tokens does not fit the prefill replica's KV cache of "
                f"{capacity}: serve it with a larger kv_cache_mib"
            )
        strange = outside(token_ids, self._vocab_size)
        if strange is not None:
            return f"token {strange}: expected ids from 0 to {self._vocab_size - 1}"
        if not 0 <= request.start < num_tokens - 1:
            return f"start {request.start}: expected 0 to {num_tokens - 2}"
        return ""

    def _of_target(self, request: PrefillRequest) -> str:
        target, layout = request.target, request.target.layout
        try:
            check_layouts(self._layouts, (layout,))
        except IllegalPlanError as error:
            return str(error)
        if layout.num_bytes != target.num_bytes or target.num_bytes > _MAX_REGION_BYTES:
            return (
                f"region {target.name} of {target.num_bytes} bytes: its layout has "
                f"{layout.num_bytes}"
            )
        strange = outside(request.block_ids, layout.num_blocks)
        if strange is not None:
            return f"destination block {strange}: the pool has blocks 0 to {layout.num_blocks - 1}"
        if not (0 <= request.imm < _MAX_ID and 0 <= target.generation < _MAX_ID):
            return f"immediate {request.imm}, generation {target.generation}: expected 64 bits"
        return ""
