"""The families of qkv: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, Site, choose
from headrace.kernels.qkv.family import NORM_ROPE_WRITE
from tests.support.kernels_families import check_cpu_gets_the_reference, check_device_gets_a_kernel

FAMILIES = [NORM_ROPE_WRITE]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    check_device_gets_a_kernel(family)


@each_family
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    check_cpu_gets_the_reference(family)


def test_a_head_that_is_no_power_of_two_wide_is_declined_by_number() -> None:
    assert "this is 96" in str(choose(NORM_ROPE_WRITE, Site(sizes={"head_dim": 96})))
