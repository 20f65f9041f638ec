"""The families of qkv: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, Site, choose
from headrace.kernels.qkv.family import NORM_ROPE_WRITE

FAMILIES = [NORM_ROPE_WRITE]
SIZES = {"head_dim": 128, "num_experts": 128, "num_tokens": 1, "weight_elements": 1 << 18}
H200 = Site(device="cuda", capability=(9, 0), libraries=frozenset({"triton"}), sizes=SIZES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    choice = choose(family, H200)
    assert choice.variant.name.endswith("triton")
    assert callable(choice.variant.load())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    choice = choose(family, Site(sizes=SIZES))
    assert choice.variant.name == "reference"
    assert "needs a CUDA device" in str(choice)
    assert callable(choice.variant.load())


def test_a_head_that_is_no_power_of_two_wide_is_declined_by_number() -> None:
    assert "this is 96" in str(choose(NORM_ROPE_WRITE, Site(sizes={"head_dim": 96})))
