"""The environment variables that this program reads, and nowhere else.

    OTEL_EXPORTER_OTLP_ENDPOINT           where traces are sent to
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT    the same, for traces alone

The exporter itself, once it is made, reads the rest of the ``OTEL_`` variables (headers, service
name, sampling). Ranks' compute libraries read what they read; see ``cluster/child.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def otlp_variable(environment: Mapping[str, str]) -> str:
    """Return the name of the variable that asks for traces; empty when none does."""
    return next((name for name in OTLP_VARIABLES if environment.get(name)), "")
