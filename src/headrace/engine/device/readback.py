"""Reading what a step drew without waiting for the next one: page-locked copies and an event.

Shape letters: B = rows   V = vocabulary   N = alternatives
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from headrace.core.messages import Submit, TokenLogprob
from headrace.engine.device.decode_step import DecodeStep
from headrace.engine.device.upload import upload
from headrace.kernels.sampling.device_logprobs import device_top_logprobs


class Drawn:
    """The tokens of one step, on their way to the host.

    Args:
        copies: Tokens, health and log-probabilities of the rows, in host memory once ``event``
            has passed.
        wanted: For each row that wants log-probabilities, its alternatives: ids, their
            log-probabilities, and how many it asked for.
        logits: Raw logits of each row that is traced.
        event: Passes when the copies are there; None when they are already.
    """

    def __init__(
        self,
        copies: tuple[Tensor, Tensor, Tensor],
        *,
        wanted: dict[int, tuple[Tensor, Tensor, int]],
        logits: dict[int, Tensor],
        event: torch.cuda.Event | None,
    ) -> None:
        self._copies, self._wanted, self._logits = copies, wanted, logits
        self._event = event

    def read(self) -> tuple[list[int], list[bool], list[TokenLogprob | None]]:
        """Wait for the step; return each row's token, health and log-probabilities."""
        if self._event is not None:
            self._event.synchronize()
        tokens, is_ok, chosen = (copy.tolist() for copy in self._copies)
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        for row, (ids, values, num_top) in self._wanted.items():
            pairs = list(zip(ids.tolist()[:num_top], values.tolist()[:num_top], strict=True))
            logprobs[row] = TokenLogprob(tokens[row], chosen[row], pairs) if is_ok[row] else None
        return tokens, is_ok, logprobs

    def logits(self, row: int) -> np.ndarray:
        """Return the raw fp32 logits of a traced row."""
        return self._logits[row].numpy()


class Readback:
    """Enqueues the copies of a step's results.

    Args:
        step: Whose results.
    """

    def __init__(self, step: DecodeStep) -> None:
        self._step = step
        self._is_cuda = step.token_ids_B.is_cuda

    def enqueue(self, submits: Seq[Submit]) -> Drawn:
        """Copy the results of the step just enqueued, one row a submit, in stream order."""
        num_rows, sampled = len(submits), self._step.sampled
        copies = (
            self._to_host(sampled.token_ids_B[:num_rows]),
            self._to_host(sampled.ok_B[:num_rows]),
            self._to_host(sampled.logprob_B[:num_rows]),
        )
        logits = {
            row: self._to_host(self._step.logits(num_rows)[row])
            for row, submit in enumerate(submits)
            if submit.trace
        }
        wanted = self._alternatives(submits)
        event = None
        if self._is_cuda:
            event = torch.cuda.Event()
            event.record()
        return Drawn(copies, wanted=wanted, logits=logits, event=event)

    def _alternatives(self, submits: Seq[Submit]) -> dict[int, tuple[Tensor, Tensor, int]]:
        """Enqueue one selection for all rows that want one, as wide as the widest."""
        asked = {
            row: submit.params.top_logprobs
            for row, submit in enumerate(submits)
            if submit.params.logprobs
        }
        if not asked:
            return {}
        # A list as an index would make the host wait for the device.
        rows_R = upload(list(asked), np.int64, device=self._step.token_ids_B.device)
        logits_RV = self._step.logits(len(submits)).index_select(0, rows_R)
        ids_RN, values_RN = map(
            self._to_host, device_top_logprobs(logits_RV, num_top=max(1, *asked.values()))
        )
        return {
            row: (ids_N, values_N, asked[row])
            for row, ids_N, values_N in zip(asked, ids_RN, values_RN, strict=True)
        }

    def _to_host(self, tensor: Tensor) -> Tensor:
        if not self._is_cuda:
            return tensor.clone()
        # The library keeps a page-locked block for as long as it is referenced or copied to.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)
