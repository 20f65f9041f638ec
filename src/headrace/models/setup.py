"""Everything besides the weights that a model of one rank is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.kernels.linear import (
    Dense,
    Products,
    Split,
    bind_dense,
    bind_split,
    choose_products,
)
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
        exact: Canonical products, and sums that a sharding may split as canonical trees.
        reduce: Joins the ranks that split attention heads and dense MLPs.
        exchange: Joins the ranks that split experts.
        ranks_share_batch: All ranks that meet in collectives run the same batch (prefill), or
            there is only one: then work that only logits need may be skipped without asking.
        num_positions: Positions to tabulate; 0 takes all that the model claims.
        chosen_products: The way of multiplying; None leaves the choice to ``choose_products``.
    """

    config: ModelConfig
    shard: ModelShard
    dtype: torch.dtype
    exact: bool = True
    reduce: AttentionReduce = no_reduce
    exchange: ExpertExchange = field(default_factory=LocalExchange)
    ranks_share_batch: bool = True
    num_positions: int = 0
    chosen_products: Products | None = None

    @property
    def products(self) -> Products:
        """The way of multiplying."""
        return self.chosen_products or choose_products(self.dtype, exact=self.exact)

    @property
    def row_dtype(self) -> torch.dtype:
        """Dtype of activations between products; what ranks exchange and cache is in ``dtype``."""
        return self.products.row_dtype(self.dtype, exact=self.exact)


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
        """Return a parameter in the model dtype (embedding, experts)."""
        return self.tensors[name].to(self.setup.dtype)

    def row(self, name: str) -> Tensor:
        """Return a parameter to use on rows (norms): model-dtype values in the rows' dtype."""
        return self.stored(name).to(self.setup.row_dtype)

    def dense(self, *names: str, biases: Sequence[str] = ()) -> Dense:
        """Bind a product with parameters stacked along their first axis, and their biases."""
        weight = torch.cat([self.stored(name) for name in names]) if len(names) > 1 else None
        return bind_dense(
            self.stored(names[0]) if weight is None else weight,
            torch.cat([self.stored(name) for name in biases]) if biases else None,
            products=self.setup.products,
            exact=self.setup.exact,
        )

    def split(self, name: str, num_leaves: int) -> Split:
        """Bind a projection whose inner width ranks split, with that many leaves held."""
        return bind_split(
            self.stored(name),
            num_leaves,
            products=self.setup.products,
            exact=self.setup.exact,
        )
