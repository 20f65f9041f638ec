"""The fit finds what a prompt's time is made of."""

import pytest

from headrace.bench.device.prefill import fit_prompt_time


def test_the_fit_recovers_the_parts_of_a_time() -> None:
    points = [(n, 0.02 + 8e-6 * n + 5e-10 * n * n) for n in (500, 1000, 3000, 9000, 30000)]
    assert fit_prompt_time(points) == pytest.approx((0.02, 8e-6, 5e-10), rel=1e-6)
