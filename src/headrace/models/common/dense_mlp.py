"""Dense SwiGLU MLP: one rank's columns.

Shape letters: T = tokens   H = hidden width   I = columns held   S = leaves held   C = I / S
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.linear import Dense, Split
from headrace.kernels.swiglu import swiglu
from headrace.models.parallel import AttentionReduce
from headrace.models.setup import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp:
    """One layer's dense MLP.

    Attributes:
        gate_up: Gate rows, then up rows, of the columns held.
        down: Down projection.
        reduce: Joins the ranks' subtrees.
    """

    gate_up: Dense
    down: Split
    reduce: AttentionReduce

    def __call__(self, x_TH: Tensor) -> Tensor:
        """Compute fp32 ``[T, H]``, summed over all ranks. A collective when columns are split."""
        return self.reduce(self.down(swiglu(self.gate_up(x_TH))))


def load_dense_mlp(weights: Weights, prefix: str) -> DenseMlp:
    """Take one layer's dense MLP out of the weights.

    Args:
        weights: This rank's parameters.
        prefix: E.g. ``model.layers.0.mlp.``.
    """
    shard = weights.setup.shard
    return DenseMlp(
        gate_up=weights.dense(prefix + "gate_proj.weight", prefix + "up_proj.weight"),
        down=weights.split(prefix + "down_proj.weight", shard.num_dense_parts // shard.tp_size),
        reduce=weights.setup.reduce,
    )
