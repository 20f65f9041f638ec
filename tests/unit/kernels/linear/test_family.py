"""The families of linear: a device gets kernels, everything else the references."""

import pytest

from headrace.kernels.catalogue import Family, choose
from headrace.kernels.linear.family import NARROW_LINEAR
from tests.support.kernels_families import (
    check_cpu_gets_the_reference,
    check_device_gets_a_kernel,
    h200,
)

FAMILIES = [NARROW_LINEAR]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_device_with_triton_gets_a_kernel(family: Family) -> None:
    check_device_gets_a_kernel(family)


@each_family
def test_a_cpu_gets_the_reference_and_the_reasons(family: Family) -> None:
    check_cpu_gets_the_reference(family)


@pytest.mark.parametrize(("rows", "elements"), [(16, 1 << 18), (32, 1 << 22), (1, 1 << 25)])
def test_more_rows_or_wider_weights_go_to_the_library(rows: int, elements: int) -> None:
    site = h200(num_tokens=rows, weight_elements=elements)
    assert choose(NARROW_LINEAR, site).variant.name == "reference"


def test_a_few_rows_of_a_middling_weight_are_split() -> None:
    site = h200(num_tokens=8, weight_elements=1 << 23)
    assert choose(NARROW_LINEAR, site).variant.name == "split_rows_triton"
