"""The families of gate: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, Site, choose
from headrace.kernels.gate.family import ROUTE
from tests.support.kernels_families import check_cpu_gets_the_reference, check_device_gets_a_kernel

FAMILIES = [ROUTE]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    check_device_gets_a_kernel(family)


@each_family
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    check_cpu_gets_the_reference(family)


def test_more_experts_than_a_program_holds_are_declined_by_number() -> None:
    site = Site(device="cuda", capability=(9, 0), sizes={"num_experts": 2000})
    assert "2000" in str(choose(ROUTE, site))
