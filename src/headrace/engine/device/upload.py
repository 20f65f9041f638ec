"""Bringing numbers from the host to a device in stream order, without waiting."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor


def upload(values: ArrayLike, dtype: DTypeLike, *, device: torch.device) -> Tensor:
    """Copy values to a device; the caller may change its own at once.

    Args:
        values: Numbers or an array of them. Not modified, not kept.
        dtype: Of the result, by numpy's name.
        device: Where to.
    """
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if device.type != "cuda":
        return host.clone()
    # The library keeps a page-locked block until the copy out of it has ended.
    return host.pin_memory().to(device, non_blocking=True)
