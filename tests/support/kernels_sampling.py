"""The same settings as a device batch and as the CPU's batch, to compare what they draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling import (
    DeviceRow,
    DeviceSamplingBatch,
    SamplingBatch,
    SamplingRow,
    TokenCounts,
    needs_counts,
    sample,
)
from headrace.kernels.sampling.family import DeviceSample
from headrace.kernels.sampling.workspace import SamplingKnobs

# Small enough that a thousand tokens make several chunks, lists and searches.
TINY = SamplingKnobs(chunk=256, sub_block=16, capacity=64, small=16, block=512)
PROMPT_IDS = (1, 2, 3)
OUTPUT_IDS = (4, 4, 5)

OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.1},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2},
    {"top_k": 3, "logit_bias": {5: 2.0, 7: -100.0, 900: 9.0}},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {4: 12.0}},
    {"top_k": 1000, "top_p": 0.5},
    {"top_p": 0.95, "frequency_penalty": 1.0, "logit_bias": {3: 9.0}},
    {"top_p": 0.99, "temperature": 3.0},
    {"top_k": 200},
    {"top_k": 500, "top_p": 0.9, "temperature": 2.0},
    {"top_k": 40, "min_p": 0.02},
    {"temperature": 2.0, "min_p": 0.001},
    {"temperature": 1e-300},
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Settings of a batch: row i draws at position 4 + i under a seed of its own."""

    params: tuple[SamplingParams, ...]
    vocab_size: int
    first_seed: int = 0

    @staticmethod
    def of(
        options: Sequence[dict[str, Any]], *, vocab_size: int = 1000, first_seed: int = 0
    ) -> Case:
        """Make a case of one row per entry."""
        params = tuple(SamplingParams(max_tokens=1, **each) for each in options)
        return Case(params=params, vocab_size=vocab_size, first_seed=first_seed)

    def seed(self, row: int) -> int:
        """Seed of a row; some use the upper half of 64 bits."""
        return (self.first_seed + row * 0x123456789ABCDEF) % (1 << 64)

    def logits(self, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
        """Return fp32 logits of every row."""
        generator = torch.Generator().manual_seed(seed)
        return scale * torch.randn(len(self.params), self.vocab_size, generator=generator)

    def on_cpu(self) -> SamplingBatch:
        """Build the batch of ``sample``."""
        return SamplingBatch.build(
            [
                SamplingRow(
                    params=params,
                    seed=self.seed(i),
                    position=4 + i,
                    counts=TokenCounts.of(PROMPT_IDS, OUTPUT_IDS, vocab_size=self.vocab_size),
                )
                for i, params in enumerate(self.params)
            ]
        )

    def tokens_on_cpu(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the tokens of ``sample``."""
        return sample(logits_BV.float().cpu(), self.on_cpu()).token_ids_B

    def on_device(
        self,
        device: torch.device | str = "cpu",
        *,
        knobs: SamplingKnobs = TINY,
        order: Sequence[int] | None = None,
        capacity: int | None = None,
    ) -> DeviceSamplingBatch:
        """Build a device batch of the rows in ``order``, with two rows of padding."""
        order = range(len(self.params)) if order is None else order
        batch = DeviceSamplingBatch.allocate(
            capacity or len(order) + 2,
            vocab_size=self.vocab_size,
            device=device,
            max_bias=16,
            knobs=knobs,
        )
        rows = [self._row(i, batch) for i in order]
        batch.update(rows, positions=[4 + i for i in order])
        return batch

    def _row(self, i: int, batch: DeviceSamplingBatch) -> DeviceRow:
        params = self.params[i]
        slot = batch.seen.take(PROMPT_IDS, OUTPUT_IDS) if needs_counts(params) else -1
        return DeviceRow.of(params, seed=self.seed(i), vocab_size=self.vocab_size, slot=slot)


FILTERS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 6),
    ({"temperature": 0.6}, 6),
    ({"min_p": 0.1}, 4),  # weights 1, .37, .37, .14, .08, .007
    ({"top_k": 3}, 3),
    ({"top_k": 2}, 2),  # equal logits: the lower id stays
    ({"top_p": 0.5}, 1),  # probabilities .51, .19, .19, .07, .04, .003
    ({"top_p": 0.88}, 3),
    ({"top_k": 2, "top_p": 0.72}, 1),  # among two: .73 and .27
    ({"top_k": 2, "top_p": 0.74}, 2),
)
"""Settings, and how many of six tokens with logits 2, 1, 1, 0, -.5, -3 they keep."""


def check_distribution(
    draw: DeviceSample, options: dict[str, Any], kept: int, *, num_draws: int, device: str = "cpu"
) -> None:
    """Draw under fixed seeds and compare with the softmax of the ``kept`` best of six tokens."""
    logits = torch.tensor([2.0, 1.0, 1.0, 0.0, -0.5, -3.0])
    case = Case.of([options] * num_draws, vocab_size=6)
    logits_BV = logits.repeat(num_draws, 1).to(device)
    tokens_B = draw(logits_BV, case.on_device(device)).token_ids_B.cpu()
    seen = torch.bincount(tokens_B, minlength=6)
    assert not seen[kept:].any(), f"{options}: {seen.tolist()}"
    scaled = logits[:kept].double() / options.get("temperature", 1.0)
    expected = torch.softmax(scaled, dim=0) * num_draws
    statistic = float(((seen[:kept] - expected) ** 2 / expected).sum())
    limits = [1e-9, 10.8, 13.8, 16.3, 18.5, 20.5]  # 99.9 % of 1 to 5 degrees of freedom
    assert statistic < limits[kept - 1], f"{options}: {seen.tolist()}"
