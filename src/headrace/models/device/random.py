"""Random weights of any released shape, made on the device: for measuring, never for answers.

Shape letters: as in the parameters' own documentation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.core.sharding import Role, Sharding
from headrace.models.config import ModelConfig
from headrace.models.slices import weight_slices

# Small enough that no activation of a deep random model overflows bf16.
STANDARD_DEVIATION = 0.02


def random_tensors(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, Tensor]:
    """Make every parameter of a model: norms of one, the rest normal.

    Args:
        config: The model.
        dtype: Of the parameters.
        device: Where they are made; nothing passes through the host.
        seed: Of the generator: the same numbers on the same kind of device.

    Returns:
        Canonical name -> whole parameter.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    for spec in weight_slices(config, Sharding(), Role.MONO, rank=0):
        tensor = torch.empty(spec.shape, dtype=dtype, device=device)
        if len(spec.shape) == 1 and spec.name.endswith("norm.weight"):
            tensors[spec.name] = tensor.fill_(1.0)
        else:
            tensors[spec.name] = tensor.normal_(0.0, STANDARD_DEVIATION, generator=generator)
    return tensors
