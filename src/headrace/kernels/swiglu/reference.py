"""Plain-torch SwiGLU.

Shape letters: T = rows   I = width of the MLP   J = 2I
"""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu(gate_up_TJ: Tensor) -> Tensor:
    """Compute ``silu(gate) * up``.

    Args:
        gate_up_TJ: Gate columns, then up columns. Not modified.

    Returns:
        ``[T, I]`` in the same dtype, freshly allocated.

    Numerics:
        SiLU in fp32, rounded before the product, as the reference library does. No element depends
        on its place in the tensor.
    """
    gate_TI, up_TI = gate_up_TJ.chunk(2, dim=-1)
    # The library's own fp32 SiLU rounds a tensor's last few elements differently; its exponential
    # and the exactly rounded operations do not depend on the place.
    gate_fp32 = gate_TI.float()
    return (gate_fp32 / torch.exp(-gate_fp32).add_(1.0)).to(gate_up_TJ.dtype) * up_TI
