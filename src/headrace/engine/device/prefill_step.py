"""A prefill step on a device: chunks of several sequences, laid side by side.

Shape letters: T = tokens of the step   C = chunks   P = blocks of the longest sequence
    L = rows that yield logits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from headrace.engine.backend import Row
from headrace.engine.device.upload import upload
from headrace.models.device.decoder import DeviceDecoder, Rows
from headrace.models.device.kernels import DeviceKernels


class PrefillStep:
    """Prefill steps on one device. One thread; enqueues and never waits.

    Args:
        decoder: The model.
        pools: Per layer the KV pool ``[2, G, N, S, D]``.
        kernels_for: Binds kernels for a number of rows.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        pools: Sequence[Tensor],
        *,
        kernels_for: Callable[[int], DeviceKernels],
    ) -> None:
        self._decoder, self._pools = decoder, pools
        self._kernels_for = kernels_for
        self._block_size = pools[0].shape[3]
        self._device = decoder.weights.norm_H.device

    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Enqueue the chunks; return fp32 logits ``[L, V]`` of those that want them."""
        lens = [len(row.token_ids) for row in rows]
        starts = [0, *np.cumsum(lens).tolist()]
        positions = np.concatenate(
            [np.arange(row.start, row.start + n) for row, n in zip(rows, lens, strict=True)]
        )
        width = max(len(row.block_ids) for row in rows)
        tables_CP = np.zeros((len(rows), width), dtype=np.int32)
        for table_P, row in zip(tables_CP, rows, strict=True):
            table_P[: len(row.block_ids)] = row.block_ids
        blocks_T = tables_CP[np.repeat(np.arange(len(rows)), lens), positions // self._block_size]
        slots_T = blocks_T * self._block_size + positions % self._block_size
        logit_rows = [
            stop - 1 for row, stop in zip(rows, starts[1:], strict=True) if row.wants_logits
        ]
        return self._decoder.prefill(
            Rows(
                token_ids_T=self._upload(np.concatenate([row.token_ids for row in rows]), np.int64),
                positions_T=self._upload(positions, np.int32),
                slots_T=self._upload(slots_T, np.int32),
            ),
            self._pools,
            self._kernels_for(starts[-1]),
            block_table_CP=self._upload(tables_CP, np.int32),
            query_starts_C1=self._upload(starts, np.int32),
            seq_lens_C=self._upload(
                [row.start + n for row, n in zip(rows, lens, strict=True)], np.int32
            ),
            max_query_len=max(lens),
            logit_rows_L=self._upload(logit_rows, np.int64) if logit_rows else None,
            on_layer=on_layer,
        )

    def _upload(self, values: ArrayLike, dtype: DTypeLike) -> Tensor:
        return upload(values, dtype, device=self._device)
