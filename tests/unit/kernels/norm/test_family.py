"""The families of norm: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family
from headrace.kernels.norm.family import ADD_RMS_NORM, RMS_NORM
from tests.support.kernels_families import check_cpu_gets_the_reference, check_device_gets_a_kernel

FAMILIES = [RMS_NORM, ADD_RMS_NORM]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    check_device_gets_a_kernel(family)


@each_family
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    check_cpu_gets_the_reference(family)
