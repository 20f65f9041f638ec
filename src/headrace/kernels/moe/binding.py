"""Experts as a layer holds them: a callable that knows its way of multiplying."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from headrace.kernels.linear import Products
from headrace.kernels.moe.leaves import Placement
from headrace.kernels.moe.packed import pack_experts_half
from headrace.kernels.moe.reference import expert_partials, pack_experts

# As ``expert_partials`` with its experts bound: rows, ids and gate weights to fp32 [R, S, H].
Experts = Callable[[Tensor, Tensor, Tensor], Tensor]


def bind_experts(
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    placement: Placement,
    *,
    products: Products,
    exact: bool,
) -> Experts:
    """Bind ``expert_partials`` to experts in the model's dtype.

    Args:
        gate_up_EJH: ``[E, 2I, H]``, gate rows first.
        down_EHI: ``[E, H, I]``.
        placement: Where they stand in the sum.
        products: The way of multiplying.
        exact: Canonical products and leaves.
    """
    if products is Products.PACKED:
        return pack_experts_half(gate_up_EJH, down_EHI, placement, exact=exact)
    if products is Products.WIDENED:
        gate_up_EJH, down_EHI = gate_up_EJH.float(), down_EHI.float()
    return partial(expert_partials, experts=pack_experts(gate_up_EJH, down_EHI, placement))
