"""Weights as a layer holds them: callables that know their way of multiplying.

Shape letters: T = rows (tokens)   K = inner width   N = columns   S = leaves held
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.linear.packed import PackedWeight, pack, pad_packed_rows
from headrace.kernels.linear.products import Products
from headrace.kernels.linear.reference import leaf_products, linear
from headrace.kernels.tree import tree_sum

# ``linear`` with its weight bound: rows [T, K] to [T, N], rounded to the rows' dtype or to the one
# named.
Dense = Callable[..., Tensor]

# A projection that a sharding may split, bound: rows [T, K] to this rank's fp32 subtree [T, N].
Split = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TensorDense:
    """See ``linear``."""

    weight_NK: Tensor
    bias_N: Tensor | None
    exact: bool

    def __call__(self, x_TK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        """Multiply; see ``linear``."""
        return linear(x_TK, self.weight_NK, self.bias_N, exact=self.exact, out_dtype=out_dtype)


@dataclass(frozen=True, slots=True)
class PackedDense:
    """``linear`` with a packed weight; without exact mode rows are fp32."""

    weight: PackedWeight
    bias_N: Tensor | None
    exact: bool

    def __call__(self, x_TK: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        """Multiply; see ``linear``."""
        y_TN = self.weight.product(pad_packed_rows(x_TK) if self.exact else x_TK)
        if self.bias_N is not None:
            y_TN += self.bias_N
        return y_TN[: x_TK.shape[0]].to(out_dtype or x_TK.dtype) if self.exact else y_TN


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """The canonical sum of ``leaf_products``."""

    weight_SKN: Tensor

    def __call__(self, x_TK: Tensor) -> Tensor:
        """Multiply and add up."""
        x_TSK = x_TK.unflatten(1, self.weight_SKN.shape[:2])
        return tree_sum(leaf_products(x_TSK, self.weight_SKN))


@dataclass(frozen=True, slots=True)
class PackedSplit:
    """The canonical sum of exact products with packed weights, one a leaf."""

    weights: Sequence[PackedWeight]

    def __call__(self, x_TK: Tensor) -> Tensor:
        """Multiply and add up."""
        num_rows = x_TK.shape[0]
        x_TSK = pad_packed_rows(x_TK).unflatten(1, (len(self.weights), -1))
        x_STK = x_TSK.transpose(0, 1).contiguous()
        leaves_STN = x_STK.new_empty((*x_STK.shape[:2], self.weights[0].num_columns))
        for weight, rows_TK, out_TN in zip(self.weights, x_STK, leaves_STN, strict=True):
            weight.product_into(rows_TK, out_TN)
        return tree_sum(leaves_STN)[:num_rows]


@dataclass(frozen=True, slots=True)
class WholeSplit:
    """One product of all columns: what a rank of its own adds without exact mode."""

    product: Dense

    def __call__(self, x_TK: Tensor) -> Tensor:
        """Multiply."""
        return self.product(x_TK, out_dtype=torch.float32)


def bind_dense(
    weight_NK: Tensor, bias_N: Tensor | None, *, products: Products, exact: bool
) -> Dense:
    """Bind ``linear`` to a weight in the model's dtype.

    Args:
        weight_NK: Kept by reference where nothing has to change.
        bias_N: Likewise; optional.
        products: The way of multiplying.
        exact: Canonical products.
    """
    if products is Products.PACKED:
        return PackedDense(pack(weight_NK), None if bias_N is None else bias_N.float(), exact)
    if products is Products.WIDENED:
        weight_NK, bias_N = weight_NK.float(), None if bias_N is None else bias_N.float()
    return TensorDense(weight_NK, bias_N, exact)


def bind_split(weight_NK: Tensor, num_leaves: int, *, products: Products, exact: bool) -> Split:
    """Bind a projection whose inner width ranks may split.

    Args:
        weight_NK: This rank's columns in the model's dtype. Kept by reference where nothing has
            to change.
        num_leaves: Leaves that the rank holds; divides K. They matter in exact mode only.
        products: The way of multiplying.
        exact: The canonical sum.
    """
    if not exact:
        return WholeSplit(bind_dense(weight_NK, None, products=products, exact=False))
    weight_NSK = weight_NK.unflatten(1, (num_leaves, -1))
    if products is Products.PACKED:
        return PackedSplit([pack(leaf_NK) for leaf_NK in weight_NSK.unbind(1)])
    return TensorSplit(weight_NSK.permute(1, 2, 0).float().contiguous())
