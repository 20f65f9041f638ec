"""Which tokens the sequences with penalties have seen, kept on the device.

A sequence owns a slot from its first step to its last, so that a new batch composition moves no
counts. Sampling itself counts the tokens that it draws.

Shape letters in this file:
    P = slots    V = vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# A word is the number of occurrences in the output; its sign bit says: occurs in the prompt.
COUNT_MASK = 0x7FFF
_PROMPT_BIT = -0x8000


class SeenTokens:
    """Slots of token counts. One thread at a time.

    Args:
        num_slots: Sequences with penalties at most.
        vocab_size: Vocabulary of the model.
        device: Where the logits will be.

    Attributes:
        seen_PV: int16; written by sampling as tokens are drawn. A count stays at 32767 once there.
    """

    def __init__(
        self, num_slots: int, *, vocab_size: int, device: torch.device | str = "cpu"
    ) -> None:
        # One slot at least: kernels want an address even where no row has one.
        self.seen_PV = torch.zeros(max(1, num_slots), vocab_size, dtype=torch.int16, device=device)
        self._free = list(range(num_slots))

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def take(self, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()) -> int:
        """Count a sequence's tokens so far in a free slot, and return the slot.

        Not for the inside of a CUDA graph: copies one row to the device, in stream order.

        Raises:
            ValueError: No slot is free: a fault of the caller, who admits the sequences.
        """
        if not self._free:
            raise ValueError(f"all {len(self.seen_PV)} slots of seen tokens are taken")
        ids = torch.tensor(list(output_ids), dtype=torch.int64)
        words_V = torch.bincount(ids, minlength=self.seen_PV.shape[1]).clamp_(max=COUNT_MASK)
        words_V = words_V.to(torch.int16)
        words_V[torch.tensor(list(prompt_ids), dtype=torch.int64)] |= _PROMPT_BIT
        slot = self._free.pop()
        self.seen_PV[slot].copy_(words_V)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot; steps that are still under way may write to it, and harm nobody.

        Raises:
            ValueError: The slot is not taken.
        """
        if slot in self._free or not 0 <= slot < len(self.seen_PV):
            raise ValueError(f"slot {slot} of seen tokens is not taken")
        self._free.append(slot)


def output_counts(seen_PV: Tensor) -> Tensor:
    """Return the occurrences in the output, int32."""
    return seen_PV.to(torch.int32) & COUNT_MASK


def in_prompt(seen_PV: Tensor) -> Tensor:
    """Return which tokens occur in the prompt, bool."""
    return seen_PV < 0
