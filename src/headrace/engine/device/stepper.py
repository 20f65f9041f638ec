"""Steps of a rank on a device, one ahead of the host: while a step runs, the host handles the last.

A step's tokens are read when the next one has been enqueued. What the host plans needs positions
and blocks only, never the tokens on their way; a sequence that turns out to have ended had one
token too many drawn, which is dropped. Prompt chunks are enqueued on a track of their own, so that
no decode step waits for one (``headrace.engine.lane``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from headrace.core.messages import Trace
from headrace.core.plans import Chunk
from headrace.engine.device.backend import DeviceBackend
from headrace.engine.device.readback import Drawn, Readback
from headrace.engine.device.rows import RowSettings
from headrace.engine.emitter import Emitter
from headrace.engine.lane import InlineTrack, PrefillLane, Track
from headrace.engine.sequence import Phase, Sequence
from headrace.engine.stepper import NOT_FINITE, Work, account, make_row, reserve
from headrace.kvcache.block_table import BlockTable


@dataclass(frozen=True, slots=True)
class _Flying:
    """A step that was enqueued and not yet read.

    Attributes:
        rows: Each row's sequence, and the table it had: one that lost it has no use for the token.
        num_tokens: Tokens with KV after the step, of each row.
        drawn: Where the tokens will be.
    """

    rows: list[tuple[Sequence, BlockTable]]
    num_tokens: list[int]
    drawn: Drawn


class DeviceStepper:
    """See ``Stepper``; ``run`` enqueues a step and returns who ended with the step before.

    Args:
        backend: The model on its device, its pool allocated.
        max_rows: Sequences decoded together.
        max_tokens: Longest prompt + output [tokens].
        track: Where prompt chunks are enqueued, and the lane that follows them; by default behind
            the decode steps.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        *,
        max_rows: int,
        max_tokens: int,
        track: tuple[Track, PrefillLane] | None = None,
    ) -> None:
        self._track, self.lane = track or (InlineTrack(), PrefillLane())
        self._backend = backend
        self._max_tokens = max_tokens
        self._step = backend.make_decode_step(max_rows=max_rows, max_tokens=max_tokens)
        self._settings = RowSettings(self._step)
        self._readback = Readback(self._step)
        self._flying: _Flying | None = None
        self._tables = np.zeros((max_rows, self._step.tables_BP.shape[1]), dtype=np.int32)

    @property
    def vocab_size(self) -> int:
        """Vocabulary of the model."""
        return self._backend.vocab_size

    def warm_up(self) -> None:
        """Record the graphs of all padded sizes, largest first, so that none is met in service."""
        if self._step.captures:
            with self._track.beside():
                for size in reversed(self._step.sizes):
                    self._step.capture(size)

    def close(self) -> None:
        """Launch nothing any more."""
        self._track.close()

    @torch.inference_mode()
    def run(self, work: Work, emitter: Emitter) -> list[Sequence]:
        """Enqueue a step; return the sequences that ended with the tokens of the one before."""
        with self._track.beside():
            return self._run(work, emitter)

    def _run(self, work: Work, emitter: Emitter) -> list[Sequence]:
        chunks = [(sequence, chunk) for sequence, chunk in work if not chunk.is_decode]
        deciding = [
            (sequence, chunk)
            for sequence, chunk in work
            if chunk.is_decode and self._goes_on(sequence)
        ]
        for sequence, chunk in work:
            reserve(sequence, chunk, self._backend)
        if chunks:
            # Not for the step below: it writes to no block that a chunk may write to.
            self._track.join()
        before, self._flying = self._flying, None
        if deciding:
            self._flying = self._launch(deciding, before)
        if chunks:
            self._prefill(chunks)
        return self._take(before, emitter) if before is not None else []

    # -- enqueueing ----------------------------------------------------------------------

    def _prefill(self, chunks: list[tuple[Sequence, Chunk]]) -> None:
        """Enqueue chunks, after the decode step: launching them takes the host longer."""
        rows = [
            # A copy: a thread may launch the step while the next one takes blocks.
            replace(make_row(*each), block_ids=tuple(each[0].blocks.block_ids))
            for each in chunks
        ]
        mark = self._track.enqueue(lambda: self._backend.run(rows))
        for sequence, chunk in chunks:
            account(sequence, chunk)
        self.lane.note(chunks, mark)

    def _goes_on(self, sequence: Sequence) -> bool:
        """Whether the token on its way, if there is one, is not the last by the limits."""
        num_tokens = sequence.blocks.num_tokens + 1
        limit = sequence.num_prompt_tokens + sequence.submit.params.max_tokens
        return num_tokens < min(limit, self._max_tokens)

    def _launch(self, deciding: Work, before: _Flying | None) -> _Flying:
        rows = [(sequence, sequence.blocks) for sequence, _ in deciding]
        places = (
            {} if before is None else {id(table): i for i, (_, table) in enumerate(before.rows)}
        )
        self._update(rows, places)
        self._step.run(len(rows))
        for sequence, chunk in deciding:
            # Its token is not known yet: what it completes is published when it is taken.
            account(sequence, chunk)
        drawn = self._readback.enqueue([sequence.submit for sequence, _ in deciding])
        return _Flying(rows, [table.num_tokens for _, table in rows], drawn)

    def _update(self, rows: list[tuple[Sequence, BlockTable]], places: dict[int, int]) -> None:
        """Tell the device who the rows are, as far as that has changed."""
        sources = [places.get(id(table), -1) for _, table in rows]
        if sources == list(range(len(places))):
            self._append_blocks(rows)
            return
        for line, (_, table) in zip(self._tables, rows, strict=False):
            line[: len(table.block_ids)] = table.block_ids
        positions = [table.num_tokens for _, table in rows]
        self._step.set_rows(
            sources=sources,
            token_ids=[
                0 if source >= 0 else sequence.token_ids[position]
                for (sequence, _), source, position in zip(rows, sources, positions, strict=True)
            ],
            positions=positions,
            tables=self._tables[: len(rows)],
        )
        self._settings.update([sequence for sequence, _ in rows], positions)

    def _append_blocks(self, rows: list[tuple[Sequence, BlockTable]]) -> None:
        """The rows are those of the step before: at most, some have taken a block more."""
        has_grown = False
        for line, (_, table) in zip(self._tables, rows, strict=False):
            last = len(table.block_ids) - 1
            if line[last] != table.block_ids[last]:
                line[last] = table.block_ids[last]
                has_grown = True
        if has_grown:
            self._step.set_tables(self._tables[: len(rows)])

    # -- reading -------------------------------------------------------------------------

    def _take(self, before: _Flying, emitter: Emitter) -> list[Sequence]:
        ended = []
        tokens, is_ok, logprobs = before.drawn.read()
        for index, (sequence, table) in enumerate(before.rows):
            if sequence.table is not table or sequence.phase is not Phase.RUNNING:
                continue
            if not is_ok[index]:
                emitter.fail(sequence, NOT_FINITE)
                ended.append(sequence)
                continue
            trace = self._trace(before, index) if sequence.submit.trace else None
            reason = emitter.take_token(
                sequence, tokens[index], logprob=logprobs[index], trace=trace
            )
            table.publish(sequence.token_ids)
            if reason is not None:
                ended.append(sequence)
        return ended

    def _trace(self, before: _Flying, index: int) -> Trace:
        table = before.rows[index][1]
        return Trace(
            logits=before.drawn.logits(index).tobytes(),
            kv_digests=self._backend.kv_digests(table.block_ids, before.num_tokens[index]),
        )
