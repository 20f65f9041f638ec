"""What holds of every family of device kernels: devices get a kernel, others the reference."""

from __future__ import annotations

from typing import Any

from headrace.kernels.catalogue import Family, Site, choose

SIZES = {"head_dim": 128, "num_experts": 128, "num_tokens": 1, "weight_elements": 1 << 18}


def h200(**sizes: int) -> Site:
    """Return a site on a device that runs every Triton kernel."""
    return Site(
        device="cuda", capability=(9, 0), libraries=frozenset({"triton"}), sizes=sizes or SIZES
    )


def check_device_gets_a_kernel(family: Family[Any]) -> None:
    """Assert that a device with Triton gets one of its kernels."""
    choice = choose(family, h200())
    assert choice.variant.name.endswith("triton")
    assert callable(choice.variant.load())


def check_cpu_gets_the_reference(family: Family[Any]) -> None:
    """Assert that a CPU gets the reference, and is told why."""
    choice = choose(family, Site(sizes=SIZES))
    assert choice.variant.name == "reference"
    assert "needs a CUDA device" in str(choice)
    assert callable(choice.variant.load())
