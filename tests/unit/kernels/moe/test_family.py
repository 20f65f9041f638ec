"""The families of moe: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, choose
from headrace.kernels.moe.family import COMBINE, GROUPED_EXPERTS
from tests.support.kernels_families import (
    check_cpu_gets_the_reference,
    check_device_gets_a_kernel,
    h200,
)

FAMILIES = [GROUPED_EXPERTS, COMBINE]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    check_device_gets_a_kernel(family)


@each_family
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    check_cpu_gets_the_reference(family)


def test_long_chunks_get_the_kernels_for_many_tokens() -> None:
    site = h200(num_tokens=4096)
    choice = choose(GROUPED_EXPERTS, site)
    assert choice.variant.name == "prefill_triton"
    assert "4096" in str(choice)
    assert callable(choice.variant.load())
