"""Dense SwiGLU MLP: one rank's columns.

Shape letters: T = tokens   H = hidden width   I = columns held   S = leaves held   C = I / S
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.linear import leaf_products, linear
from headrace.kernels.swiglu import swiglu
from headrace.kernels.tree import tree_sum
from headrace.models.parallel import AttentionReduce
from headrace.models.setup import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp:
    """One layer's dense MLP.

    Attributes:
        gate_up_JH: Gate rows, then up rows, of the columns held.
        down_SCH: Down projection by leaf.
        exact: Canonical products.
        reduce: Joins the ranks' subtrees.
    """

    gate_up_JH: Tensor
    down_SCH: Tensor
    exact: bool
    reduce: AttentionReduce

    def __call__(self, x_TH: Tensor) -> Tensor:
        """Compute fp32 ``[T, H]``, summed over all ranks. A collective when columns are split."""
        act_TI = swiglu(linear(x_TH, self.gate_up_JH, exact=self.exact))
        act_TSC = act_TI.unflatten(1, self.down_SCH.shape[:2])
        return self.reduce(tree_sum(leaf_products(act_TSC, self.down_SCH, exact=self.exact)))


def load_dense_mlp(weights: Weights, prefix: str) -> DenseMlp:
    """Take one layer's dense MLP out of the weights.

    Args:
        weights: This rank's parameters.
        prefix: E.g. ``model.layers.0.mlp.``.
    """
    shard = weights.setup.shard
    return DenseMlp(
        gate_up_JH=weights.joined(prefix + "gate_proj.weight", prefix + "up_proj.weight"),
        down_SCH=weights.leaves(
            prefix + "down_proj.weight", shard.num_dense_parts // shard.tp_size
        ),
        exact=weights.setup.exact,
        reduce=weights.setup.reduce,
    )
