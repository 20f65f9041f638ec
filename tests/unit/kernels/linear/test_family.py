"""The families of linear: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, Site, choose
from headrace.kernels.linear.family import NARROW_LINEAR

FAMILIES = [NARROW_LINEAR]
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


@pytest.mark.parametrize(("rows", "elements"), [(8, 1 << 18), (2, 1 << 22), (1, 1 << 24)])
def test_more_rows_or_wider_weights_go_to_the_library(rows: int, elements: int) -> None:
    site = Site(
        device="cuda",
        capability=(9, 0),
        libraries=frozenset({"triton"}),
        sizes={"num_tokens": rows, "weight_elements": elements},
    )
    assert choose(NARROW_LINEAR, site).variant.name == "reference"
