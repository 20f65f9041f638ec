"""What a device can do at most, measured by the timer, and in the run, that it is to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.bench.device.draws import Draws
from headrace.bench.device.timing import CudaTimer, Timer, time_interleaved

# fp32: 4 GiB, far more than any cache holds and small beside the memory of any device.
MEMORY_ELEMENTS = 1 << 30
# Large enough that neither edges nor launches count.
MATMUL_SIZE = 8192
NUM_REPLAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured limits of one device.

    Attributes:
        read_bytes_per_s: Of a reduction of a large tensor.
        flops_per_s: Of a large bf16 product of random numbers.
        copy_bytes_per_s: Of a device copy, bytes read plus bytes written; 0 when not measured.
    """

    read_bytes_per_s: float
    flops_per_s: float
    copy_bytes_per_s: float = 0.0

    @property
    def memory_bytes_per_s(self) -> float:
        """Best rate that any access reached: floors must not hide behind a slow reduction."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)

    def floor_us(self, *, num_bytes: float, flops: float = 0.0) -> float:
        """Return the least time for so many bytes and operations [us].

        Example:
            >>> ceilings = Ceilings(read_bytes_per_s=4e12, flops_per_s=8e14)
            >>> ceilings.floor_us(num_bytes=4e6), ceilings.floor_us(num_bytes=4e6, flops=8e9)
            (1.0, 10.0)
        """
        return 1e6 * max(num_bytes / self.memory_bytes_per_s, flops / self.flops_per_s)


def measure_ceilings(
    timer: Timer | None = None,
    device: torch.device | str = "cuda",
    *,
    num_elements: int = MEMORY_ELEMENTS,
    matmul_size: int = MATMUL_SIZE,
) -> Ceilings:
    """Time a device copy, reductions and a bf16 product on random numbers.

    Args:
        timer: Of the device; that of the current CUDA device when None.
        device: Where.
        num_elements: Of the fp32 tensor that is copied and reduced.
        matmul_size: Rows and columns of both factors.

    Returns:
        Medians; of two reductions the faster, since neither is sure to be at the limit. What was
        allocated, some 9 GB, is free again.
    """
    timer = timer or CudaTimer()
    p50_us = _time(timer, Draws(device, seed=0), num_elements=num_elements, size=matmul_size)
    timer.release()
    num_bytes = 4 * num_elements
    return Ceilings(
        read_bytes_per_s=num_bytes / min(p50_us["sum"], p50_us["maximum"]) * 1e6,
        flops_per_s=2 * matmul_size**3 / p50_us["matmul"] * 1e6,
        copy_bytes_per_s=2 * num_bytes / p50_us["copy"] * 1e6,
    )


def _time(timer: Timer, draws: Draws, *, num_elements: int, size: int) -> dict[str, float]:
    source = draws.normal(num_elements, dtype=torch.float32)
    target, words = torch.empty_like(source), source.view(torch.int32)
    left, right = (draws.normal(size, size) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "sum": lambda: source.sum(),
        "maximum": lambda: words.amax(),
        "matmul": lambda: torch.mm(left, right),
    }
    recorded = {name: (timer.record([call], captures=True), 1) for name, call in calls.items()}
    timings = time_interleaved(recorded, timer, num_replays=NUM_REPLAYS)
    return {name: timing.p50_us for name, timing in timings.items()}
