"""Where traces go: to a collector if one is named, otherwise to whoever set up the library."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace import Tracer

from headrace import __version__
from headrace.cli.environment import otlp_variable
from headrace.core.errors import ConfigError

# The last spans leave when the server stops; a collector that does not answer must not hold it up.
EXPORT_TIMEOUT_S = 1.0

_NEEDS = "traces need packages that are not installed: pip install 'headrace[otel]'"
_log = logging.getLogger(__name__)


@contextmanager
def exported_traces(endpoint: str) -> Iterator[Tracer]:
    """Give a tracer whose spans are exported as long as the context lasts.

    Args:
        endpoint: Address of an OTLP collector over HTTP, such as ``http://localhost:4318``; empty
            leaves the choice to the standard variables. With neither, spans go to the provider
            that the process has, which drops them unless somebody set one up.

    Raises:
        ConfigError: An endpoint was configured and the exporter is not installed.
    """
    variable = otlp_variable(os.environ)
    provider = None
    if endpoint or variable:
        try:
            provider = _provider(endpoint)
        except ImportError as error:
            if endpoint:
                raise ConfigError(f"otlp_endpoint={endpoint!r}: {_NEEDS}") from error
            # The variable may be meant for everybody on the machine.
            _log.warning("%s is set, but %s", variable, _NEEDS)
    try:
        yield (provider or trace.get_tracer_provider()).get_tracer("headrace", __version__)
    finally:
        if provider is not None:
            provider.shutdown()


def _provider(endpoint: str) -> Any:
    # Optional packages: a server without traces does not need them.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "headrace"}))
    # A timeout is a number of seconds and may be broken; the annotation of the library says int.
    timeout_s: Any = EXPORT_TIMEOUT_S
    exporter = OTLPSpanExporter(endpoint=traces_url(endpoint) or None, timeout=timeout_s)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def traces_url(endpoint: str) -> str:
    """Return the collector's address with the path for traces, unless it has a path already.

    Example:
        >>> traces_url("http://localhost:4318")
        'http://localhost:4318/v1/traces'
    """
    has_path = urlsplit(endpoint).path not in ("", "/")
    return endpoint if has_path or not endpoint else endpoint.rstrip("/") + "/v1/traces"
