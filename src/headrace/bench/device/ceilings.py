"""What a device can do at most, measured in the run whose floors are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Far more than any cache holds, and far less than any device has.
_READ_BYTES = 4 << 30
_MATMUL_SIZE = 8192
_REPEATS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured limits of one device.

    Attributes:
        read_bytes_per_s: Of a sum over a large tensor.
        flops_per_s: Of a large bf16 product of random numbers.
    """

    read_bytes_per_s: float
    flops_per_s: float

    def floor_us(self, *, num_bytes: float, flops: float = 0.0) -> float:
        """Return the least time for so many bytes and operations [us].

        Example:
            >>> ceilings = Ceilings(read_bytes_per_s=4e12, flops_per_s=8e14)
            >>> ceilings.floor_us(num_bytes=4e6), ceilings.floor_us(num_bytes=4e6, flops=8e9)
            (1.0, 10.0)
        """
        return 1e6 * max(num_bytes / self.read_bytes_per_s, flops / self.flops_per_s)


def time_us(call: Callable[[], object], *, repeats: int = _REPEATS) -> list[float]:
    """Return the device's times of a call after one to warm up, ascending [us]."""
    call()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return sorted(times)


def measure_ceilings() -> Ceilings:
    """Measure this process's device; takes 4 GiB of it for a moment."""
    data = torch.empty(_READ_BYTES // 4, device="cuda").normal_()
    read_us = time_us(data.sum)
    del data
    size = (_MATMUL_SIZE, _MATMUL_SIZE)
    left, right = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_us = time_us(lambda: torch.mm(left, right))
    return Ceilings(
        read_bytes_per_s=_READ_BYTES / (read_us[_REPEATS // 2] * 1e-6),
        flops_per_s=2 * _MATMUL_SIZE**3 / (product_us[_REPEATS // 2] * 1e-6),
    )
