"""Everything besides the weights that a model of one rank is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.models.config import ModelConfig
from headrace.models.parallel import AttentionReduce, ExpertExchange, LocalExchange, no_reduce
from headrace.models.shard import ModelShard


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """One rank's model, without its weights.

    Attributes:
        config: The whole model.
        shard: This rank's part.
        dtype: Dtype of activations and KV: ``torch.float32`` or ``torch.bfloat16``.
        exact: Canonical products in fp32; otherwise the library's in ``dtype``. Either way sums
            that a sharding may split are canonical trees.
        reduce: Joins the ranks that split attention heads and dense MLPs.
        exchange: Joins the ranks that split experts.
        ranks_share_batch: All ranks that meet in collectives run the same batch (prefill), or
            there is only one: then work that only logits need may be skipped without asking.
        num_positions: Positions to tabulate; 0 takes all that the model claims.
    """

    config: ModelConfig
    shard: ModelShard
    dtype: torch.dtype
    exact: bool = True
    reduce: AttentionReduce = no_reduce
    exchange: ExpertExchange = field(default_factory=LocalExchange)
    ranks_share_batch: bool = True
    num_positions: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    """This rank's named slices, handed out in the form a layer computes with.

    Attributes:
        tensors: Canonical name -> this rank's part, as ``weight_slices`` describes. Not modified.
        setup: Decides dtypes.
    """

    tensors: Mapping[str, Tensor]
    setup: ModelSetup

    def stored(self, name: str) -> Tensor:
        """Return a parameter in the model dtype (norms, embedding)."""
        return self.tensors[name].to(self.setup.dtype)

    def compute(self, name: str) -> Tensor:
        """Return a parameter to multiply with: an fp32 copy of the model-dtype values if exact."""
        return self._computed(self.stored(name))

    def joined(self, *names: str) -> Tensor:
        """Return parameters stacked along their first axis, to multiply with."""
        return self._computed(torch.cat([self.stored(name) for name in names]))

    def leaves(self, name: str, num_leaves: int) -> Tensor:
        """Return a ``[N, K]`` projection cut along K: ``[S, K / S, N]`` for ``leaf_products``."""
        weight_NSK = self.compute(name).unflatten(1, (num_leaves, -1))
        return weight_NSK.permute(1, 2, 0).contiguous()

    def _computed(self, weight: Tensor) -> Tensor:
        return weight.float() if self.setup.exact else weight
