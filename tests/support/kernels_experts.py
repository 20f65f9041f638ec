"""Random experts and rows for tests of the expert kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.linear import Products
from headrace.kernels.moe import Experts as BoundExperts
from headrace.kernels.moe import Placement, bind_experts, local_id_table
from tests.support.kernels_checks import random


@dataclass(frozen=True)
class Experts:
    """Whole experts of a model, and rows that were sent to them."""

    gate_up: Tensor
    down: Tensor
    num_groups: int
    num_parts: int

    def bind(
        self,
        experts: range | None = None,
        parts: range | None = None,
        *,
        products: Products = Products.WIDENED,
        exact: bool = True,
    ) -> BoundExperts:
        """Bind what one rank holds."""
        num_experts, hidden, width = self.down.shape
        experts = range(num_experts) if experts is None else experts
        parts = range(self.num_parts) if parts is None else parts
        held = slice(experts.start, experts.stop)
        gate_up = self.gate_up[held].unflatten(1, (2, self.num_parts, -1))
        down = self.down[held].unflatten(2, (self.num_parts, -1))
        columns = slice(parts.start, parts.stop)
        num_groups = self.num_groups * len(experts) // num_experts
        placement = Placement(
            local_ids=local_id_table(experts, num_experts),
            group_E=torch.arange(len(experts)) * num_groups // len(experts),
            num_groups=num_groups,
            num_parts=len(parts),
            is_whole=len(parts) == self.num_parts,
        )
        return bind_experts(
            gate_up[:, :, columns].reshape(len(experts), -1, hidden),
            down[:, :, columns].flatten(2),
            placement,
            products=products,
            exact=exact,
        )

    def reference(self, x: Tensor, ids: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        """Compute row by row, pair by pair, in ``dtype``."""
        out = torch.zeros(x.shape, dtype=dtype)
        for row, expert, weight in zip(
            torch.arange(len(ids)).repeat_interleave(ids.shape[1]),
            ids.flatten(),
            weights.flatten(),
            strict=True,
        ):
            gate, up = F.linear(x[row].to(dtype), self.gate_up[expert].to(dtype)).chunk(2)
            act = F.silu(gate) * up
            out[row] += weight.to(dtype) * F.linear(act, self.down[expert].to(dtype))
        return out


def random_experts(
    num_experts: int,
    *,
    hidden: int = 48,
    width: int = 64,
    groups: int = 16,
    parts: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Experts:
    return Experts(
        gate_up=random(num_experts, 2 * width, hidden, seed=1, dtype=dtype) * hidden**-0.5,
        down=random(num_experts, hidden, width, seed=2, dtype=dtype) * width**-0.5,
        num_groups=groups,
        num_parts=parts,
    )


def random_rows(
    rows: int, num_experts: int, *, top_k: int = 4, hidden: int = 48, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their experts in random order, and weights."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.rand((rows, num_experts), generator=generator).argsort(dim=1)[:, :top_k]
    weights = torch.rand((rows, top_k), generator=generator).to(dtype).float()
    return random(rows, hidden, dtype=dtype), ids, weights
