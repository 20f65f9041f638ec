"""The sampling settings of a batch as tensors: built when the batch changes, then reused.

Shape letters in this file:
    B = rows of the batch    V = vocabulary    R = a subset of rows    N = biased (row, token) pairs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling.counts import TokenCounts, needs_counts
from headrace.kernels.sampling.noise import to_int64


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRow:
    """One sequence that draws a token in this step.

    Attributes:
        params: The request's settings.
        seed: ``choice_seed(params.seed, choice)``.
        position: Index in prompt + output of the token to be drawn: ``len(prompt)`` for the first.
        counts: Needed exactly when ``needs_counts(params)``; read at each ``sample``, not copied.
    """

    params: SamplingParams
    seed: int
    position: int
    counts: TokenCounts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingBatch:
    """Settings of all rows. Built by ``build``; nothing in it depends on the logits.

    Attributes:
        rows: What it was built from, in batch order.
        seeds_B: int64 seeds.
        positions_B: int64 positions of the tokens to be drawn.
        temperature_B: float64; 0 marks a greedy row.
        top_k_B: int64; 0 keeps all.
        top_p_B: float64 in (0, 1].
        min_p_B: float64 in [0, 1).
        presence_B: float32 presence penalties.
        frequency_B: float32 frequency penalties.
        repetition_B: float32 repetition penalties.
        bias_rows_N: int64 row of each biased logit.
        bias_tokens_N: int64 token of each biased logit.
        bias_values_N: float32 amounts.
        penalised_R: int64 rows with a penalty.
        plain_R: int64 rows that draw from the whole vocabulary.
        top_k_rows_R: int64 rows that draw from their top k.
        sorted_R: int64 rows with top-p but no top-k.
        logprobs_R: int64 rows whose log-probabilities are wanted.
        max_top_k: Largest ``top_k`` of the batch.
        max_top_logprobs: Most alternatives that a row wants.
    """

    rows: tuple[SamplingRow, ...]
    seeds_B: Tensor
    positions_B: Tensor
    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    presence_B: Tensor
    frequency_B: Tensor
    repetition_B: Tensor
    bias_rows_N: Tensor
    bias_tokens_N: Tensor
    bias_values_N: Tensor
    penalised_R: Tensor
    plain_R: Tensor
    top_k_rows_R: Tensor
    sorted_R: Tensor
    logprobs_R: Tensor
    max_top_k: int
    max_top_logprobs: int

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the tokens are the argmax of the logits as they came, in every row."""
        is_drawn = len(self.plain_R) or len(self.top_k_rows_R) or len(self.sorted_R)
        return not (is_drawn or len(self.penalised_R) or len(self.bias_rows_N))

    @staticmethod
    def build(rows: Sequence[SamplingRow], *, device: torch.device | str = "cpu") -> SamplingBatch:
        """Gather the settings of ``rows``.

        Args:
            rows: One per row of the logits, in order. Settings are taken as valid (the HTTP edge
                checks them); token ids of ``logit_bias`` lie in the vocabulary.
            device: Where the logits will be.

        Raises:
            ValueError: A row has penalties and no counts: a fault of the caller.
        """
        columns = _Columns(rows, device)
        kinds = [_kind(row.params) for row in rows]
        bias = [(i, t, b) for i, r in enumerate(rows) for t, b in r.params.logit_bias.items()]
        for i, row in enumerate(rows):
            if needs_counts(row.params) and row.counts is None:
                raise ValueError(f"row {i} has penalties but no token counts")
        return SamplingBatch(
            rows=tuple(rows),
            seeds_B=columns.ints(lambda row: to_int64(row.seed)),
            positions_B=columns.ints(lambda row: row.position),
            temperature_B=columns.floats(lambda p: p.temperature, torch.float64),
            top_k_B=columns.ints(lambda row: row.params.top_k),
            top_p_B=columns.floats(lambda p: p.top_p, torch.float64),
            min_p_B=columns.floats(lambda p: p.min_p, torch.float64),
            presence_B=columns.floats(lambda p: p.presence_penalty),
            frequency_B=columns.floats(lambda p: p.frequency_penalty),
            repetition_B=columns.floats(lambda p: p.repetition_penalty),
            bias_rows_N=_tensor([i for i, _, _ in bias], torch.int64, device),
            bias_tokens_N=_tensor([t for _, t, _ in bias], torch.int64, device),
            bias_values_N=_tensor([b for _, _, b in bias], torch.float32, device),
            penalised_R=columns.where(lambda p: needs_counts(p)),
            plain_R=_indices(kinds, "plain", device),
            top_k_rows_R=_indices(kinds, "top_k", device),
            sorted_R=_indices(kinds, "sorted", device),
            logprobs_R=columns.where(lambda p: p.logprobs),
            max_top_k=max((row.params.top_k for row in rows), default=0),
            max_top_logprobs=max(
                (r.params.top_logprobs for r in rows if r.params.logprobs), default=0
            ),
        )

    def with_positions(self, positions_B: Tensor) -> SamplingBatch:
        """Return the same rows at other positions: the next step of an unchanged batch.

        Args:
            positions_B: int64 ``[B]`` on the batch's device; kept, not copied.
        """
        return replace(self, positions_B=positions_B)


def _kind(params: SamplingParams) -> str:
    if params.temperature <= 0.0:
        return "greedy"
    if params.top_k > 0:
        return "top_k"
    return "sorted" if params.top_p < 1.0 else "plain"


def _tensor(values: list, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _indices(kinds: list[str], kind: str, device: torch.device | str) -> Tensor:
    return _tensor([i for i, k in enumerate(kinds) if k == kind], torch.int64, device)


@dataclass(frozen=True, slots=True)
class _Columns:
    rows: Sequence[SamplingRow]
    device: torch.device | str

    def ints(self, of: Callable[[SamplingRow], int]) -> Tensor:
        return _tensor([of(row) for row in self.rows], torch.int64, self.device)

    def floats(
        self, of: Callable[[SamplingParams], float], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return _tensor([of(row.params) for row in self.rows], dtype, self.device)

    def where(self, of: Callable[[SamplingParams], bool]) -> Tensor:
        hits = [i for i, row in enumerate(self.rows) if of(row.params)]
        return _tensor(hits, torch.int64, self.device)
