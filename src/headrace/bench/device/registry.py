"""The cases of every family, by the family's name."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.device import (
    cases_add_rms_norm,
    cases_combine,
    cases_decode_attention,
    cases_device_sample,
    cases_grouped_experts,
    cases_narrow_linear,
    cases_norm_rope_write,
    cases_prefill_attention,
    cases_rms_norm,
    cases_route,
)
from headrace.bench.device.case import FamilyCases
from headrace.core.errors import ConfigError
from headrace.kernels.families import DEVICE_FAMILIES

_MODULES = (
    cases_add_rms_norm,
    cases_combine,
    cases_decode_attention,
    cases_device_sample,
    cases_grouped_experts,
    cases_narrow_linear,
    cases_norm_rope_write,
    cases_prefill_attention,
    cases_rms_norm,
    cases_route,
)
_BY_NAME: dict[str, FamilyCases] = {module.CASES.family.name: module.CASES for module in _MODULES}
FAMILY_CASES: dict[str, FamilyCases] = {
    family.name: _BY_NAME[family.name] for family in DEVICE_FAMILIES
}


def select_families(names: Sequence[str]) -> list[FamilyCases]:
    """Return the cases of some families, in the catalogue's order; of all when none is named.

    Raises:
        ConfigError: There is no such family.
    """
    if unknown := [name for name in names if name not in FAMILY_CASES]:
        raise ConfigError(f"--family {unknown[0]!r}: expected one of {', '.join(FAMILY_CASES)}")
    return [cases for name, cases in FAMILY_CASES.items() if not names or name in names]
