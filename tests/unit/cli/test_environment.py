"""The variables that ask for traces, the one for traces alone first."""

import pytest

from headrace.cli.environment import OTLP_VARIABLES, otlp_variable

TRACES, ALL = OTLP_VARIABLES


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ""),
        ({ALL: ""}, ""),
        ({ALL: "http://a"}, ALL),
        ({ALL: "http://a", TRACES: "http://b"}, TRACES),
        ({"OTEL_SERVICE_NAME": "x"}, ""),
    ],
)
def test_a_variable_asks_for_traces_when_it_has_a_value(
    environment: dict[str, str], expected: str
) -> None:
    assert otlp_variable(environment) == expected
