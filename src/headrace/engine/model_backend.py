"""The real backend: a model's forward pass over this rank's KV pool.

Shape letters: T = tokens of the step    L = rows that yield logits    H = hidden width
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from headrace.comm.canonical import all_reduce_root
from headrace.comm.dispatch import AllToAllExchange, ReplicatedExchange
from headrace.comm.group import Group
from headrace.core.launch import LaunchSpec
from headrace.core.layouts import CacheLayout
from headrace.core.sharding import Role
from headrace.engine.backend import Row
from headrace.engine.pool_view import copy_block, digest_kv, view_pool
from headrace.models.checkpoint.load import load_weights
from headrace.models.config import ModelConfig
from headrace.models.forward_batch import SequenceChunk, build_forward_batch
from headrace.models.parallel import AttentionReduce, ExpertExchange, LocalExchange, no_reduce
from headrace.models.registry import Model
from headrace.models.registry import load_model as build_model
from headrace.models.setup import ModelSetup
from headrace.models.shard import shard_of
from headrace.models.slices import weight_slices

# Up to so many tokens, waking torch's other threads costs more than they do (two cores, 16 tokens:
# 472 tokens/s with one thread, 338 with two). Packed products share their own work regardless.
FEW_TOKENS = 16

OnProgress = Callable[[int, int], None]


class ModelBackend:
    """See ``Backend``.

    Args:
        model: This rank's model.
        config: The whole model.
        heads: KV heads held by this rank.
    """

    owns_memory = False

    def __init__(self, model: Model, config: ModelConfig, *, heads: range) -> None:
        self.schemas = model.cache_schema
        self.vocab_size = config.vocab_size
        self._model = model
        self._heads = heads
        self._caches: list[Tensor] = []
        self._block_size = 0
        self._num_threads = torch.get_num_threads()

    def allocate(self, layout: CacheLayout) -> None:
        """Refuse: the pool lies in the rank's region."""
        raise AssertionError("this backend is attached to a region")

    def attach(self, region: memoryview, *, num_blocks: int, block_size: int) -> None:
        """See ``Backend.attach``."""
        layout = CacheLayout(
            layers=self.schemas,
            first_head=self._heads.start,
            num_heads=len(self._heads),
            num_blocks=num_blocks,
            block_size=block_size,
        )
        self._caches = view_pool(region, layout)
        self._block_size = block_size

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See ``Backend.run``."""
        chunks = [
            SequenceChunk(
                token_ids=row.token_ids,
                start=row.start,
                block_ids=row.block_ids,
                wants_logits=row.wants_logits,
            )
            for row in rows
        ]
        batch = build_forward_batch(chunks, self._model.attention_shape(self._block_size))
        if batch.num_tokens > FEW_TOKENS:
            return self._model.forward(batch, self._caches, on_layer)
        torch.set_num_threads(1)
        try:
            return self._model.forward(batch, self._caches, on_layer)
        finally:
            torch.set_num_threads(self._num_threads)

    def copy_block(self, source: int, target: int) -> None:
        """See ``Backend.copy_block``."""
        copy_block(self._caches, source, target)

    def kv_digests(self, block_ids: Sequence[int], num_tokens: int) -> list[list[bytes]]:
        """See ``Backend.kv_digests``."""
        return digest_kv(self._caches, block_ids, num_tokens)

    def close(self) -> None:
        """See ``Backend.close``."""
        self._caches = []


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    spec: LaunchSpec,
    group: Group,
    on_progress: OnProgress,
) -> Model:
    """Read this rank's slices of a checkpoint and join its sums to the group's.

    Raises:
        UserError: The sharding cannot be, or the folder is not exactly as its config promises.
    """
    shard = shard_of(config, spec.sharding, spec.role, rank=spec.rank)
    dtype = getattr(torch, spec.engine.resolve_dtype(config.dtype))
    weights = load_weights(
        folder,
        weight_slices(config, spec.sharding, spec.role, rank=spec.rank),
        dtype=dtype,
        on_progress=on_progress,
    )
    setup = ModelSetup(
        config=config,
        shard=shard,
        dtype=dtype,
        exact=spec.engine.exact,
        reduce=_reduce(spec, group),
        exchange=_exchange(config, spec, group),
        ranks_share_batch=spec.role is Role.PREFILL or group.size == 1,
        num_positions=spec.engine.max_model_tokens,
    )
    return build_model(weights, setup)


def _reduce(spec: LaunchSpec, group: Group) -> AttentionReduce:
    if spec.role is not Role.PREFILL or group.size == 1:
        return no_reduce
    return partial(all_reduce_root, group)


def _exchange(config: ModelConfig, spec: LaunchSpec, group: Group) -> ExpertExchange:
    if not config.num_experts or group.size == 1:
        return LocalExchange()
    if spec.role is Role.PREFILL:
        return ReplicatedExchange(
            group,
            num_experts=config.num_experts,
            width_ranks=spec.sharding.tp // spec.sharding.ep,
        )
    return AllToAllExchange(group, num_experts=config.num_experts)
