"""Runs one step's rows on the backend and samples the rows that want a token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor

from headrace.core.flight import Flight
from headrace.core.messages import Trace
from headrace.core.plans import Chunk
from headrace.engine.backend import Backend, Row
from headrace.engine.emitter import Emitter
from headrace.engine.lane import PASSED, PrefillLane
from headrace.engine.sequence import Sequence
from headrace.kernels.sampling import SampledTokens, SamplingBatch, SamplingRow, sample

Work = Seq[tuple[Sequence, Chunk]]

NOT_FINITE = "the model's logits are not finite: check the weights"


class AnyStepper(Protocol):
    """What a decode rank runs its steps on.

    Attributes:
        lane: Prompt chunks that were run and whose KV may not be there yet.
    """

    lane: PrefillLane

    @property
    def vocab_size(self) -> int:
        """Vocabulary of the model."""
        ...

    def run(self, work: Work, emitter: Emitter) -> list[Sequence]:
        """Take a step, and return the sequences that ended with tokens that came of it.

        On a device those may be the tokens of the step before. The sequences' tables have room
        for their chunks afterwards whatever they had before.
        """
        ...


class Stepper:
    """The part of a decode rank that touches tensors.

    Args:
        backend: What the rows run on.
        flight: Told of every layer.
    """

    def __init__(self, backend: Backend, *, flight: Flight | None = None) -> None:
        self._backend = backend
        self._on_layer = (flight or Flight()).enter_layer
        self.lane = PrefillLane()
        self._sampled: list[Sequence] = []
        self._batch: SamplingBatch | None = None

    @property
    def vocab_size(self) -> int:
        """Vocabulary of the model."""
        return self._backend.vocab_size

    def run(self, work: Work, emitter: Emitter) -> list[Sequence]:
        """Compute a step, take its tokens, and return the sequences that ended with them.

        The sequences' tables have room for their chunks afterwards whatever they had before.
        """
        for sequence, chunk in work:
            reserve(sequence, chunk, self._backend)
        rows = [make_row(sequence, chunk) for sequence, chunk in work]
        logits_LV = self._backend.run(rows, on_layer=self._on_layer)
        for sequence, chunk in work:
            account(sequence, chunk)
            sequence.blocks.publish(sequence.token_ids)
        self.lane.note([each for each in work if not each[1].is_decode], PASSED)
        deciding = [sequence for sequence, chunk in work if chunk.is_decode]
        if not deciding:
            return []
        sampled = sample(logits_LV, self._sampling_batch(deciding))
        return self._take(deciding, sampled, logits_LV=logits_LV, emitter=emitter)

    def _sampling_batch(self, deciding: list[Sequence]) -> SamplingBatch:
        """Return the settings of these sequences; only positions change from step to step."""
        if self._batch is None or deciding != self._sampled:
            self._sampled = deciding
            self._batch = SamplingBatch.build([_sampling(each) for each in deciding])
            return self._batch
        return self._batch.with_positions(
            torch.tensor([len(sequence.token_ids) for sequence in deciding])
        )

    def _take(
        self,
        deciding: Seq[Sequence],
        sampled: SampledTokens,
        *,
        logits_LV: Tensor,
        emitter: Emitter,
    ) -> list[Sequence]:
        ended = []
        tokens, ok = sampled.token_ids_B.tolist(), sampled.ok_B.tolist()
        for index, sequence in enumerate(deciding):
            if not ok[index]:
                emitter.fail(sequence, NOT_FINITE)
                ended.append(sequence)
                continue
            trace = self._trace(sequence, logits_LV[index]) if sequence.submit.trace else None
            reason = emitter.take_token(
                sequence, tokens[index], logprob=sampled.logprobs[index], trace=trace
            )
            if reason is not None:
                ended.append(sequence)
        return ended

    def _trace(self, sequence: Sequence, logits_V: Tensor) -> Trace:
        table = sequence.blocks
        return Trace(
            logits=logits_V.contiguous().numpy().tobytes(),
            kv_digests=self._backend.kv_digests(table.block_ids, table.num_tokens),
        )


def reserve(sequence: Sequence, chunk: Chunk, backend: Backend) -> None:
    """Make what the sequence shares its own where the chunk writes, and room for the chunk."""
    table = sequence.blocks
    for copy in table.copies:
        backend.copy_block(copy.source, copy.target)
    table.finish_copies()
    if not table.reserve(chunk.num_tokens):
        raise AssertionError(f"{sequence.sequence_id}: the step plan overdrew the pool")


def make_row(sequence: Sequence, chunk: Chunk) -> Row:
    """Return a chunk as the backend takes it; the sequence has room for it."""
    return Row(
        token_ids=sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens],
        start=chunk.start,
        block_ids=sequence.blocks.block_ids,
        wants_logits=chunk.is_decode,
        num_prompt_tokens=sequence.num_prompt_tokens,
        ordinal=sequence.submit.ordinal,
    )


def account(sequence: Sequence, chunk: Chunk) -> None:
    """Note that a chunk's KV exists, or will before anything enqueued later reads it."""
    sequence.blocks.advance(chunk.num_tokens)
    is_prompt = chunk.start < sequence.num_prompt_tokens
    if not chunk.is_decode and sequence.is_resumed:
        sequence.ledger.recomputed_tokens += chunk.num_tokens
    elif is_prompt and sequence.num_output_tokens == 0:
        sequence.ledger.computed_tokens += chunk.num_tokens


def _sampling(sequence: Sequence) -> SamplingRow:
    return SamplingRow(
        params=sequence.submit.params,
        seed=sequence.seed,
        position=len(sequence.token_ids),
        counts=sequence.counts,
    )
