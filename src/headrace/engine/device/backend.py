"""The backend of a rank on a device: weights and KV pool in the device's own memory.

Shape letters: G = KV heads   N = blocks of the pool   S = token slots of a block
    D = head dimension   L = rows that yield logits   V = vocabulary
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from headrace.core.layouts import CacheLayout
from headrace.engine.backend import Row
from headrace.engine.device.decode_step import DecodeStep
from headrace.engine.device.prefill_step import PrefillStep
from headrace.engine.pool_view import copy_block, digest_kv
from headrace.kernels.attention.decode_plan import decode_knobs, make_decode_scratch
from headrace.kernels.catalogue import Site, bind
from headrace.kernels.sampling.device_batch import DeviceSamplingBatch
from headrace.kernels.sampling.family import DEVICE_SAMPLE
from headrace.models.device.decoder import DeviceDecoder
from headrace.models.device.kernels import bind_kernels, choose_kernels, why_no_graph

log = logging.getLogger(__name__)


class DeviceBackend:
    """See ``Backend``; its pool is made by ``allocate``, since no host memory holds it.

    Args:
        decoder: The model.
        site: What its kernels are chosen by.
    """

    owns_memory = True

    def __init__(self, decoder: DeviceDecoder, site: Site) -> None:
        self.decoder = decoder
        self.site = site
        self.schemas = decoder.cache_schema
        self.vocab_size = decoder.config.vocab_size
        self.device = decoder.weights.norm_H.device
        self.kernels_for = cache(lambda num_tokens: bind_kernels(site, num_tokens=num_tokens))
        self._pools: list[Tensor] = []
        self._prefill: PrefillStep | None = None

    def allocate(self, layout: CacheLayout) -> None:
        """Make the KV pool of a layout; zeros, since some kernels read slots past the end."""
        self._pools = [
            torch.zeros(
                (2, layout.num_heads, layout.num_blocks, layout.block_size, schema.head_dim),
                dtype=getattr(torch, schema.dtype),
                device=self.device,
            )
            for schema in layout.layers
        ]
        self._prefill = PrefillStep(self.decoder, self._pools, kernels_for=self.kernels_for)

    def randomize_pool(self) -> None:
        """Fill the pool with normal numbers: a history to measure with."""
        for pool in self._pools:
            # No 8-bit float has a generator of its own.
            pool.copy_(torch.randn(pool.shape, device=self.device))

    def attach(self, region: memoryview, *, num_blocks: int, block_size: int) -> None:
        """Refuse: a device's pool is not in host memory."""
        raise AssertionError("a device backend allocates its own pool")

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See ``Backend.run``; enqueues, and the logits are on the device."""
        assert self._prefill is not None, "run before allocate"
        if not rows:
            return torch.zeros((0, self.vocab_size), device=self.device)
        return self._prefill.run(rows, on_layer=on_layer)

    def make_decode_step(self, *, max_rows: int, max_tokens: int) -> DecodeStep:
        """Make the decode steps of this pool.

        Args:
            max_rows: Sequences decoded together.
            max_tokens: Longest sequence [tokens].
        """
        block_size = self._pools[0].shape[3]
        return DecodeStep(
            self.decoder,
            self._pools,
            kernels_for=self.kernels_for,
            sample=bind(DEVICE_SAMPLE, self.site),
            sampling=DeviceSamplingBatch.allocate(
                max_rows, vocab_size=self.vocab_size, device=self.device
            ),
            table_width=-(-max_tokens // block_size),
            make_scratch=partial(self._make_scratch, max_tokens),
            captures=self._captures(max_rows),
        )

    def copy_block(self, source: int, target: int) -> None:
        """See ``Backend.copy_block``; in stream order."""
        copy_block(list(map(_as_bytes, self._pools)), source, target)

    def kv_digests(self, block_ids: Sequence[int], num_tokens: int) -> list[list[bytes]]:
        """See ``Backend.kv_digests``; waits for the device."""
        ids = torch.tensor(list(block_ids), dtype=torch.long, device=self.device)
        held = [_as_bytes(pool)[:, :, ids].cpu() for pool in self._pools]
        return digest_kv(held, range(len(ids)), num_tokens)

    def close(self) -> None:
        """See ``Backend.close``; waits for the device, where streams may still use the pool."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._prefill = None
        self._pools = []

    def _captures(self, max_rows: int) -> bool:
        reason = why_no_graph(self.site, num_tokens=max_rows)
        if reason is not None and self.device.type == "cuda":
            log.warning("decode steps run without CUDA graphs: %s", reason)
        return reason is None

    def _make_scratch(self, max_tokens: int, num_rows: int) -> object:
        choices = choose_kernels(self.site, num_tokens=num_rows)
        if choices["decode_attention"].variant.name == "reference":
            return None
        config = self.decoder.config
        knobs = decode_knobs(
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            kv_bytes=self._pools[0].element_size(),
            queries_per_kv=config.num_heads // config.num_kv_heads,
            num_rows=num_rows,
        )
        return make_decode_scratch(
            num_rows,
            max_tokens,
            num_kv_heads=config.num_kv_heads,
            queries_per_kv=config.num_heads // config.num_kv_heads,
            head_dim=config.head_dim,
            knobs=knobs,
            device=self.device,
        )


def _as_bytes(pool: Tensor) -> Tensor:
    """View an 8-bit pool as what every operator can index; any other as it is."""
    return pool.view(torch.uint8) if pool.itemsize == 1 else pool
