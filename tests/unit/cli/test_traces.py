"""Spans reach the collector that was named; without its packages that is one clear line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from headrace.cli.environment import OTLP_VARIABLES
from headrace.cli.traces import exported_traces, traces_url
from headrace.core.errors import ConfigError
from tests.support.otlp_collector import Collector, running_collector

SDK = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTLP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_spans_have_left_when_the_context_ends(collector: Collector) -> None:
    with exported_traces(collector.url) as tracer:
        tracer.start_span("one").end()
    assert [span.name for span in collector.spans()] == ["one"]
    assert collector.services() == {"headrace"}
    assert {path for path, _ in collector.posts} == {"/v1/traces"}


def test_the_standard_variables_are_enough(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with exported_traces("") as tracer:
        tracer.start_span("one").end()
    assert [span.name for span in collector.spans()] == ["one"]
    assert collector.services() == {"mine"}


def test_without_a_collector_spans_are_not_even_made() -> None:
    with exported_traces("") as tracer:
        assert not tracer.start_span("one").is_recording()


@pytest.mark.parametrize("module", SDK)
def test_an_endpoint_without_the_packages_is_refused_in_one_line(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = r"otlp_endpoint='http://c': traces need packages .* pip install 'headrace\[otel\]'$"
    with pytest.raises(ConfigError, match=message), exported_traces("http://c"):
        pass


def test_a_variable_without_the_packages_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, SDK[0], None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c")
    with exported_traces("") as tracer:
        assert not tracer.start_span("one").is_recording()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set, but traces need packages" in record.getMessage()


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", ""),
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_the_path_for_traces_is_added_where_there_is_none(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
