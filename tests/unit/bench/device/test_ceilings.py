"""The least time is the larger of two, and measuring it wants a device."""

import pytest
import torch

from headrace.bench.device.ceilings import Ceilings, measure_ceilings


def test_the_slower_of_bytes_and_operations_decides() -> None:
    ceilings = Ceilings(read_bytes_per_s=2e12, flops_per_s=1e14)
    assert ceilings.floor_us(num_bytes=4e6) == 2.0
    assert ceilings.floor_us(num_bytes=4e6, flops=1e9) == 10.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_nothing_is_measured_without_a_device() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        measure_ceilings()
