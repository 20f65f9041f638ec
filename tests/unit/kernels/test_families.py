"""The list of families is whole, and each ends in a reference that runs anywhere."""

import pytest

from headrace.kernels.catalogue import Family, Site, accept_all, choose
from headrace.kernels.families import DEVICE_FAMILIES
from headrace.models.device.kernels import FAMILIES

each_family = pytest.mark.parametrize("family", DEVICE_FAMILIES, ids=lambda family: family.name)


def test_names_are_unique_and_cover_what_the_model_binds():
    names = [family.name for family in DEVICE_FAMILIES]
    assert len(set(names)) == len(names)
    assert {family.name for family, _ in FAMILIES.values()} <= set(names)


@each_family
def test_the_last_variant_is_a_reference_for_every_site(family: Family):
    last = family.variants[-1]
    assert (last.name, last.decline) == ("reference", accept_all)
    assert callable(last.load())


@each_family
def test_a_cpu_gets_the_reference_and_a_reason_for_every_other(family: Family):
    choice = choose(family, Site())
    assert choice.variant.name == "reference"
    assert len(choice.declined) == len(family.variants) - 1
    assert all(reason for _, reason in choice.declined)


@each_family
def test_variants_name_their_technology(family: Family):
    ends = ("triton", "cute", "flash_attention_4", "reference")
    assert all(variant.name.endswith(ends) for variant in family.variants)
