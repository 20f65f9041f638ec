"""The sampling settings of a decode batch, resident on the device at addresses that never change.

A CUDA graph that samples reads these tensors; the host rewrites them in stream order when the
composition of the batch changes, and the device advances the positions by itself.

Shape letters in this file:
    B = row capacity    W = words of a row    M = biased tokens of a row at most
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.sampling.device_seen import SeenTokens
from headrace.kernels.sampling.device_settings import NUM_WORDS, POSITION, DeviceRow
from headrace.kernels.sampling.workspace import SamplingKnobs, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampled:
    """One token per row, on the device.

    Attributes:
        token_ids_B: int64 or int32; 0 for padding and where ``ok_B`` is False.
        ok_B: bool; False where the row's logits held NaN or an infinity.
        logprob_B: fp32 log-probability of the token in the raw logits; 0 where there is none.
    """

    token_ids_B: Tensor
    ok_B: Tensor
    logprob_B: Tensor

    @staticmethod
    def empty(
        num_rows: int, *, device: torch.device | str, dtype: torch.dtype = torch.int64
    ) -> DeviceSampled:
        """Allocate for ``num_rows`` rows; ``dtype`` is that of the token ids."""
        return DeviceSampled(
            token_ids_B=torch.empty(num_rows, dtype=dtype, device=device),
            ok_B=torch.empty(num_rows, dtype=torch.bool, device=device),
            logprob_B=torch.empty(num_rows, dtype=torch.float32, device=device),
        )


class _Mirror:
    """Page-locked host memory that one copy at a time reads."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        is_cuda = like[0].is_cuda
        self.tensors = [torch.zeros(t.shape, dtype=t.dtype, pin_memory=is_cuda) for t in like]
        self._copied = torch.cuda.Event() if is_cuda else None

    def wait(self) -> None:
        """Wait until the last copy out of here has ended."""
        if self._copied is not None:
            self._copied.synchronize()

    def mark(self) -> None:
        """Note that a copy out of here was enqueued."""
        if self._copied is not None:
            self._copied.record()


@dataclass(slots=True, kw_only=True, eq=False)
class DeviceSamplingBatch:
    """Settings, seen tokens and scratch of up to B rows. Made by ``allocate``; one thread.

    Attributes:
        settings_BW: int64 words of ``device_settings.py``; all zeros for padding.
        bias_tokens_BM: int32 ascending ids of biased tokens; only ``NUM_BIAS`` of a row count.
        bias_values_BM: fp32 amounts.
        seen: Slots of seen tokens.
        workspace: Scratch of the kernels.
        vocab_size: Vocabulary of the model.
    """

    settings_BW: Tensor
    bias_tokens_BM: Tensor
    bias_values_BM: Tensor
    seen: SeenTokens
    workspace: Workspace
    vocab_size: int
    _mirrors: list[_Mirror]
    _has_bias: bool = False

    @staticmethod
    def allocate(
        capacity: int,
        *,
        vocab_size: int,
        device: torch.device | str,
        num_slots: int | None = None,
        max_bias: int = 1024,
        knobs: SamplingKnobs | None = None,
    ) -> DeviceSamplingBatch:
        """Allocate for ``capacity`` rows, all padding.

        Args:
            capacity: Most rows of a batch.
            vocab_size: Vocabulary of the model.
            device: Where the logits will be.
            num_slots: Most sequences with penalties, 2 bytes per vocabulary entry each;
                ``capacity`` when None.
            max_bias: Most biased tokens of a row; a power of two.
            knobs: Sizes of the passes; the defaults when None.
        """
        settings_BW = torch.zeros(capacity, NUM_WORDS, dtype=torch.int64, device=device)
        tokens_BM = torch.zeros(capacity, max_bias, dtype=torch.int32, device=device)
        values_BM = torch.zeros(capacity, max_bias, dtype=torch.float32, device=device)
        slots = capacity if num_slots is None else num_slots
        return DeviceSamplingBatch(
            settings_BW=settings_BW,
            bias_tokens_BM=tokens_BM,
            bias_values_BM=values_BM,
            seen=SeenTokens(slots, vocab_size=vocab_size, device=device),
            workspace=Workspace.allocate(
                capacity, vocab_size=vocab_size, knobs=knobs or SamplingKnobs(), device=device
            ),
            vocab_size=vocab_size,
            _mirrors=[_Mirror((settings_BW, tokens_BM, values_BM)) for _ in range(2)],
        )

    @property
    def capacity(self) -> int:
        """Most rows of a batch."""
        return len(self.settings_BW)

    @property
    def positions_B(self) -> Tensor:
        """int64 positions of the tokens to be drawn: a view; sampling adds one to each."""
        return self.settings_BW[:, POSITION]

    def why_not(self, row: DeviceRow) -> str | None:
        """Say why a row's settings do not fit, or None: to be asked when it is admitted."""
        most = self.bias_tokens_BM.shape[1]
        if len(row.bias_tokens) > most:
            return f"logit_bias names {len(row.bias_tokens)} tokens, at most {most} are supported"
        return None

    def update(self, rows: Sequence[DeviceRow], *, positions: Sequence[int]) -> None:
        """Make ``rows`` the first rows of the batch and all others padding.

        Copies in stream order and does not wait for the device, except for the copy of two
        updates ago. Not for the inside of a CUDA graph.

        Args:
            rows: In the order of the logits; each fits (see ``why_not``).
            positions: Index in prompt + output of the token that each row draws next. Tokens of
                steps that are enqueued but not yet seen by the host count.

        Raises:
            ValueError: More rows than the capacity, or a row that does not fit.
        """
        if len(rows) > self.capacity or len(rows) != len(positions):
            raise ValueError(f"{len(rows)} rows, {len(positions)} positions, room {self.capacity}")
        for row in rows:
            reason = self.why_not(row)
            if reason is not None:
                raise ValueError(reason)
        mirror = self._mirrors[0]
        self._mirrors.reverse()
        mirror.wait()
        self._fill(mirror, rows, positions)
        self.settings_BW.copy_(mirror.tensors[0], non_blocking=True)
        if self._has_bias:
            self.bias_tokens_BM.copy_(mirror.tensors[1], non_blocking=True)
            self.bias_values_BM.copy_(mirror.tensors[2], non_blocking=True)
        mirror.mark()

    def _fill(self, mirror: _Mirror, rows: Sequence[DeviceRow], positions: Sequence[int]) -> None:
        settings, tokens, values = (tensor.numpy() for tensor in mirror.tensors)
        settings[len(rows) :] = 0
        if rows:
            np.stack([row.words for row in rows], out=settings[: len(rows)])
            settings[: len(rows), POSITION] = positions
        biased = [(i, row) for i, row in enumerate(rows) if len(row.bias_tokens)]
        self._has_bias = bool(biased)
        for i, row in biased:
            tokens[i, : len(row.bias_tokens)] = row.bias_tokens
            values[i, : len(row.bias_values)] = row.bias_values
