"""Random inputs, made where they are used.

Products of zeros draw less power and so run at higher clocks than any real ones: inputs are never
zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Draws:
    """A seeded source of tensors on one device.

    Args:
        device: Where tensors are made; nothing passes through the host.
        seed: Equal seeds draw equal tensors on the same kind of device.
    """

    def __init__(self, device: torch.device | str, *, seed: int) -> None:
        self.device = torch.device(device)
        self._generator = torch.Generator(device=self.device).manual_seed(seed)

    def normal(
        self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16
    ) -> Tensor:
        """Draw from a normal distribution of mean 0 and standard deviation ``scale``."""
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        return tensor.normal_(0.0, scale, generator=self._generator)

    def permutation(self, size: int) -> Tensor:
        """Draw an order of ``range(size)``, int32."""
        order = torch.randperm(size, generator=self._generator, device=self.device)
        return order.to(torch.int32)

    def integers(self, *shape: int, high: int) -> Tensor:
        """Draw int32 from ``range(high)``."""
        return torch.randint(
            high, shape, generator=self._generator, device=self.device, dtype=torch.int32
        )
