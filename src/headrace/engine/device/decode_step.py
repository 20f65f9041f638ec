"""A decode step that needs nothing from the host: buffers at fixed addresses, graphs over them.

The device keeps each row's next token and position; a step writes their KV, draws the tokens that
follow and advances both. The host only changes rows: who they are, and which blocks they have.

Shape letters: B = row capacity   P = block-table width   S = token slots of a block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from headrace.engine.device.upload import upload
from headrace.kernels.sampling.device_batch import DeviceSampled, DeviceSamplingBatch
from headrace.models.device.decoder import DeviceDecoder, Rows
from headrace.models.device.kernels import DeviceKernels

Sample = Callable[..., DeviceSampled]


def padded_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the row counts that steps are padded to, the last at least ``max_rows``.

    Example:
        >>> padded_sizes(40)
        (1, 2, 4, 8, 16, 24, 32, 48)
    """
    sizes = [1, 2, 4, 8, 16, 24, 32]
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + (16 if sizes[-1] < 128 else 32))
    return tuple(
        size for index, size in enumerate(sizes) if not index or sizes[index - 1] < max_rows
    )


class DecodeStep:
    """Decode steps of up to B rows on one device. One thread; enqueues and never waits.

    Args:
        decoder: The model.
        pools: Per layer the KV pool ``[2, G, N, S, D]``.
        kernels_for: Binds kernels for a number of rows, each number once.
        sample: The bound sampling kernel.
        sampling: Settings of the rows; its capacity is B.
        table_width: P.
        make_scratch: Makes the attention kernel's scratch for a padded size.
        captures: Replay CUDA graphs; off, the same code runs step by step.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        pools: Sequence[Tensor],
        *,
        kernels_for: Callable[[int], DeviceKernels],
        sample: Sample,
        sampling: DeviceSamplingBatch,
        table_width: int,
        make_scratch: Callable[[int], object] = lambda num_rows: None,
        captures: bool = True,
    ) -> None:
        device = decoder.weights.norm_H.device
        capacity = sampling.capacity
        self._decoder, self._pools = decoder, pools
        self._kernels_for, self._sample, self.sampling = kernels_for, sample, sampling
        self._make_scratch, self.captures = make_scratch, captures
        self._scratch: dict[int, object] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, Tensor] = {}
        self._memory: Any = None
        self.sizes = tuple(min(size, capacity) for size in padded_sizes(capacity))
        self.block_size = pools[0].shape[3]
        self.token_ids_B = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.positions_B = torch.zeros(capacity, dtype=torch.int32, device=device)
        self.tables_BP = torch.zeros((capacity, table_width), dtype=torch.int32, device=device)
        self.num_rows_1 = torch.zeros(1, dtype=torch.int32, device=device)
        self._row_ids_B = torch.arange(capacity, dtype=torch.int32, device=device)
        self.sampled = DeviceSampled.empty(capacity, device=device)

    @property
    def capacity(self) -> int:
        """B."""
        return len(self.token_ids_B)

    def padded(self, num_rows: int) -> int:
        """Return the size that a step of ``num_rows`` rows runs at."""
        return next(size for size in self.sizes if size >= num_rows)

    def set_rows(
        self,
        *,
        sources: Sequence[int],
        token_ids: Sequence[int],
        positions: Sequence[int],
        tables: np.ndarray,
    ) -> None:
        """Change who the rows are; in stream order, without waiting.

        Args:
            sources: For each row the row of the last step whose drawn token it goes on with, or
                -1 for one that brings its token along.
            token_ids: The tokens brought along; ignored where there is a source.
            positions: Index of each row's next token in prompt + output.
            tables: int32 ``[rows, P]`` block ids.
        """
        num_rows = len(sources)
        words_3R = self._upload([sources, token_ids, positions], np.int64)
        from_step_R = self.token_ids_B[words_3R[0].clamp(min=0)]
        self.token_ids_B[:num_rows] = torch.where(words_3R[0] >= 0, from_step_R, words_3R[1])
        self.positions_B[:num_rows] = words_3R[2].int()
        self.set_tables(tables)
        self.num_rows_1.fill_(num_rows)

    def set_tables(self, tables: np.ndarray) -> None:
        """Change the rows' block tables: int32 ``[rows, P]``."""
        self.tables_BP[: len(tables)] = self._upload(tables, np.int32)

    def run(self, num_rows: int) -> DeviceSampled:
        """Enqueue one step of the first rows.

        Returns:
            What they drew; overwritten by the next step.
        """
        size = self.padded(num_rows)
        if not self.captures:
            self.run_once(size, self._kernels_for(size))
        else:
            if size not in self._graphs:
                self.capture(size)
            self._graphs[size].replay()
        return self.sampled

    def logits(self, num_rows: int) -> Tensor:
        """Return the logits of the last step's first rows, fp32: overwritten by the next."""
        return self._logits[self.padded(num_rows)][:num_rows]

    def capture(self, size: int) -> None:
        """Record the graph of one padded size; every row is padding meanwhile."""
        kept, kernels = (self.num_rows_1.clone(), self.token_ids_B.clone()), self._kernels_for(size)
        self.num_rows_1.zero_()
        current = torch.cuda.current_stream()
        # Nothing can be recorded on the default stream; on another, kernels keep its priority.
        stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self.run_once(size, kernels)
        current.wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._memory, stream=current if stream is current else None
        ):
            self.run_once(size, kernels)
        self._memory = self._memory or graph.pool()
        self._graphs[size] = graph
        self.num_rows_1.copy_(kept[0])
        self.token_ids_B.copy_(kept[1])

    def run_once(self, size: int, kernels: DeviceKernels) -> None:
        """Enqueue a step of a padded size with these kernels, without its graph."""
        if size not in self._scratch:
            self._scratch[size] = self._make_scratch(size)
        is_row_B = self._row_ids_B[:size] < self.num_rows_1
        positions_B = torch.where(is_row_B, self.positions_B[:size], 0)
        tables_BP = self.tables_BP[:size]
        blocks_B = tables_BP.gather(1, (positions_B // self.block_size).long()[:, None])[:, 0]
        slots_B = blocks_B * self.block_size + positions_B % self.block_size
        logits_BV = self._decoder.decode(
            Rows(
                token_ids_T=self.token_ids_B[:size],
                positions_T=positions_B,
                slots_T=torch.where(is_row_B, slots_B, -1),
                num_rows_1=self.num_rows_1,
            ),
            self._pools,
            kernels,
            block_table_BP=tables_BP,
            seq_lens_B=torch.where(is_row_B, positions_B + 1, 0),
            scratch=self._scratch[size],
        )
        self._logits[size] = logits_BV
        part = DeviceSampled(
            token_ids_B=self.sampled.token_ids_B[:size],
            ok_B=self.sampled.ok_B[:size],
            logprob_B=self.sampled.logprob_B[:size],
        )
        self._sample(logits_BV, self.sampling, out=part)
        self.token_ids_B[:size].copy_(part.token_ids_B)
        self.positions_B[:size].add_(is_row_B)

    def _upload(self, values: ArrayLike, dtype: DTypeLike) -> Tensor:
        return upload(values, dtype, device=self.token_ids_B.device)
