"""The plain form of device sampling has the right distributions; see also ``test_family.py``."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.kernels.sampling.device_reference import device_sample
from tests.support.kernels_sampling import FILTERS, check_distribution


@pytest.mark.parametrize(("options", "kept"), FILTERS)
def test_draws_follow_the_softmax_of_what_the_filters_keep(
    options: dict[str, Any], kept: int
) -> None:
    check_distribution(device_sample, options, kept, num_draws=5000)
