"""Every family of the catalogue has cases, in the catalogue's order."""

import pytest

from headrace.bench.device.registry import FAMILY_CASES, select_families
from headrace.core.errors import ConfigError
from headrace.kernels.families import DEVICE_FAMILIES


def test_every_family_has_cases():
    assert list(FAMILY_CASES) == [family.name for family in DEVICE_FAMILIES]
    assert all(FAMILY_CASES[family.name].family is family for family in DEVICE_FAMILIES)
    assert all(cases.cases for cases in FAMILY_CASES.values())


def test_without_a_name_all_are_selected():
    assert select_families([]) == list(FAMILY_CASES.values())


def test_families_come_in_the_catalogues_order():
    chosen = select_families(["route", "rms_norm"])
    assert [cases.family.name for cases in chosen] == ["rms_norm", "route"]


def test_an_unknown_family_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"--family 'gate': expected one of rms_norm, .*route"):
        select_families(["route", "gate"])
