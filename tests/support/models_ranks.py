"""Ranks of one replica as threads, with collectives that gather through shared lists."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from headrace.core.sharding import Role, Sharding
from headrace.kernels.tree import tree_sum
from headrace.models.config import ModelConfig
from headrace.models.parallel import LocalExperts
from headrace.models.registry import Model, load_model
from headrace.models.setup import ModelSetup
from headrace.models.shard import shard_of
from tests.support.models_builders import rank_weights

# Far beyond any wait of a passing test.
PATIENT_S = 60.0


class Rank:
    """One rank's end of a gather over threads: both strategies of the models."""

    def __init__(self, index: int, boxes: list[Any], barrier: threading.Barrier) -> None:
        self.index = index
        self._boxes = boxes
        self._barrier = barrier
        self.width_ranks = 1
        self.shares_batch = True

    def gather(self, value: Any) -> list[Any]:
        self._boxes[self.index] = value
        self._barrier.wait(PATIENT_S)
        values = list(self._boxes)
        self._barrier.wait(PATIENT_S)
        return values

    def reduce(self, partial_TH: Tensor) -> Tensor:
        return tree_sum(torch.stack(self.gather(partial_TH)))

    def run(
        self, x_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, local_experts: LocalExperts
    ) -> Tensor:
        if self.shares_batch:
            return self._finish(self.gather(local_experts(x_TH, ids_TK, weights_TK)))
        batches = self.gather((x_TH, ids_TK, weights_TK))
        partials = self.gather([local_experts(*batch) for batch in batches])
        return self._finish([rank_partials[self.index] for rank_partials in partials])

    def _finish(self, partials: list[Tensor]) -> Tensor:
        """Order subtrees as leaves are: expert part, group, width part."""
        grouped = torch.stack(partials).unflatten(0, (-1, self.width_ranks))
        return tree_sum(grouped.permute(2, 0, 3, 1, 4).flatten(1, 3), dim=1)


def run_replica(
    config: ModelConfig,
    weights: dict[str, Tensor],
    work: Callable[[Model, int], Any],
    *,
    sharding: Sharding,
    role: Role = Role.PREFILL,
    dtype: torch.dtype = torch.float32,
) -> list[Any]:
    """Return what ``work(model, rank)`` returned on every rank of a replica."""
    size = sharding.num_ranks
    boxes: list[Any] = [None] * size
    barrier = threading.Barrier(size)

    def one(index: int) -> Any:
        torch.set_num_threads(1)
        rank = Rank(index, boxes, barrier)
        rank.shares_batch = role is Role.PREFILL
        if role is Role.PREFILL and config.num_experts:
            rank.width_ranks = sharding.tp // sharding.ep
        setup = ModelSetup(
            config=config,
            shard=shard_of(config, sharding, role, rank=index),
            dtype=dtype,
            exchange=rank,
            ranks_share_batch=rank.shares_batch,
            **({"reduce": rank.reduce} if role is Role.PREFILL else {}),
        )
        model = load_model(rank_weights(weights, config, sharding, role, rank=index), setup)
        try:
            return work(model, index)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as executor:
        return list(executor.map(one, range(size)))


def mono_model(
    config: ModelConfig,
    weights: dict[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    exact: bool = True,
) -> Model:
    """Build the one-rank model."""
    shard = shard_of(config, Sharding(), Role.MONO, rank=0)
    return load_model(weights, ModelSetup(config=config, shard=shard, dtype=dtype, exact=exact))
