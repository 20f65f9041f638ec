"""The least time is the larger of two; rates are bytes and operations over measured times."""

import pytest
import torch

from headrace.bench.device.ceilings import Ceilings, measure_ceilings
from tests.support.device_timer import FakeTimer


def test_the_slower_of_bytes_and_operations_decides() -> None:
    ceilings = Ceilings(read_bytes_per_s=2e12, flops_per_s=1e14)
    assert ceilings.floor_us(num_bytes=4e6) == 2.0
    assert ceilings.floor_us(num_bytes=4e6, flops=1e9) == 10.0


def test_memory_is_as_fast_as_the_best_access() -> None:
    ceilings = Ceilings(read_bytes_per_s=2e12, flops_per_s=1e14, copy_bytes_per_s=4e12)
    assert ceilings.memory_bytes_per_s == 4e12
    assert ceilings.floor_us(num_bytes=4e6) == 1.0


def test_rates_come_from_sizes_and_times() -> None:
    timer = FakeTimer(lambda: 2.0)
    ceilings = measure_ceilings(timer, "cpu", num_elements=1 << 10, matmul_size=16)
    # 4 KiB in 2 us; a copy moves them twice.
    assert ceilings.read_bytes_per_s == pytest.approx(4096 / 2e-6)
    assert ceilings.copy_bytes_per_s == pytest.approx(2 * ceilings.read_bytes_per_s)
    assert ceilings.flops_per_s == pytest.approx(2 * 16**3 / 2e-6)
    assert all(captures for _, captures in timer.recorded)
    assert timer.num_releases == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_nothing_is_measured_without_a_device() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        measure_ceilings()
