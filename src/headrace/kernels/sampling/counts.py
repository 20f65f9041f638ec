"""Which tokens a sequence has seen: kept step by step, only for sequences with penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.core.requests import SamplingParams


def needs_counts(params: SamplingParams) -> bool:
    """Whether any penalty of ``params`` has an effect."""
    return (
        params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.repetition_penalty != 1.0
    )


class TokenCounts:
    """Dense counts of one sequence's tokens, updated in place as it grows.

    Holds 5 bytes per vocabulary entry. Made once per sequence (again after a preemption or a
    resume, from the same tokens), never per step. One thread at a time.

    Attributes:
        output_V: int32, occurrences in the output.
        prompt_V: bool, occurs in the prompt.
    """

    def __init__(self, vocab_size: int, *, device: torch.device | str = "cpu") -> None:
        self.output_V = torch.zeros(vocab_size, dtype=torch.int32, device=device)
        self.prompt_V = torch.zeros(vocab_size, dtype=torch.bool, device=device)

    @staticmethod
    def of(
        prompt_ids: Sequence[int],
        output_ids: Sequence[int] = (),
        *,
        vocab_size: int,
        device: torch.device | str = "cpu",
    ) -> TokenCounts:
        """Count a sequence's tokens so far. Ids lie in ``range(vocab_size)``."""
        counts = TokenCounts(vocab_size, device=device)
        counts.prompt_V[torch.tensor(list(prompt_ids), dtype=torch.int64, device=device)] = True
        counts.add(output_ids)
        return counts

    def add(self, output_ids: Sequence[int]) -> None:
        """Count new output tokens."""
        ids = torch.tensor(list(output_ids), dtype=torch.int64, device=self.output_V.device)
        self.output_V.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
