"""Time limits that contradict each other are refused."""

import pytest

from headrace.core.errors import ConfigError
from headrace.serving.router.config import RegistryConfig


@pytest.mark.parametrize(
    "values",
    [
        {"late_s": 0.0},
        {"late_s": 5.0, "dead_s": 4.0},
        {"stuck_s": 0.0},
        {"stuck_s": float("nan")},
    ],
    ids=str,
)
def test_time_limits_that_contradict_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        RegistryConfig(**values)
