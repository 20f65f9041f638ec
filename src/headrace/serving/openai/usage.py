"""The ``usage`` object, from the ledgers of a request's choices."""

from __future__ import annotations

from typing import Any

from headrace.core.messages import Output
from headrace.core.requests import Ledger

# What of a ledger adds up over sequences; the rest are names.
_SUMMED = tuple(
    name
    for name in Ledger.__struct_fields__
    if name not in ("prefill_replica", "decode_replica", "decode_rank")
)


class Usage:
    """Adds up one HTTP request.

    Args:
        prompt_tokens: Tokens of all prompts, each counted once however many choices it has.
        choices_per_prompt: Choices that share a prompt.
        has_ledger: Show the sum of all choices' ledgers too.
    """

    def __init__(
        self, prompt_tokens: int, *, choices_per_prompt: int, has_ledger: bool = False
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self._choices_per_prompt = choices_per_prompt
        self._cached_tokens = 0
        self._reasoning_tokens = 0
        self._ledger: dict[str, float] | None = dict.fromkeys(_SUMMED, 0) if has_ledger else None

    def add(self, index: int, output: Output) -> None:
        """Count one output of choice ``index``."""
        self.completion_tokens += len(output.token_ids)
        ledger = output.ledger
        if ledger is None or output.finish_reason is None:
            return
        if self._ledger is not None:
            for name in _SUMMED:
                self._ledger[name] += getattr(ledger, name)
        self._reasoning_tokens += ledger.reasoning_tokens
        # Choices of a prompt share its KV: the first one's ledger says what was found.
        if index % self._choices_per_prompt == 0:
            self._cached_tokens += cached_tokens(ledger)

    def to_dict(self) -> dict[str, Any]:
        """Return OpenAI's ``usage`` object, with ``ledger`` where it was asked for.

        Its times are added over the choices: seconds of sequences, not of the clock.
        """
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
        }
        return usage if self._ledger is None else usage | {"ledger": self._ledger}


def cached_tokens(ledger: Ledger) -> int:
    """Return the prompt tokens that no one had to compute, wherever they were found.

    Both caches hold a prefix of the same prompt, so the longer one counts, not the sum.
    """
    return max(ledger.cached_tokens, ledger.prefiller_cached_tokens)
