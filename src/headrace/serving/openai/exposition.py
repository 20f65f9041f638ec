"""Renders all that is known into the text that Prometheus reads.

Names and labels stand in ``docs/metrics.md``; a test holds the page and this file together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.serving.fleet import Fleet, RankLoad
from headrace.serving.openai.histogram import Histogram
from headrace.serving.openai.metrics import SOURCES, ServingMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RANK_LABELS = ("replica", "rank", "role")
_RANK_GAUGES = {
    "running": ("num_running", "Sequences being prefilled or decoded"),
    "waiting": ("num_waiting", "Requests not yet admitted"),
    "free_blocks": ("free_blocks", "KV blocks that can be handed out"),
    "total_blocks": ("total_blocks", "KV blocks of the pool"),
    "rank_up": ("is_up", "1 when the rank is alive and making progress"),
}


def render(metrics: ServingMetrics, fleet: Fleet, *, num_calls: int) -> bytes:
    """Return the exposition text of everything known now.

    Cost: O(ranks + label values); nothing is kept between calls.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(metrics, fleet, num_calls))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, metrics: ServingMetrics, fleet: Fleet, num_calls: int) -> None:
        self._metrics = metrics
        self._fleet = fleet
        self._num_calls = num_calls

    def collect(self) -> Iterable[Metric]:
        yield from _edge(self._metrics)
        yield from _histograms(self._metrics)
        yield _gauge("requests_in_flight", "Requests not over", self._num_calls)
        yield _gauge("ready", "1 when every replica makes progress", self._is_ready())
        yield from _ranks(self._fleet.rank_loads())
        for name, value in sorted(self._fleet.counters().items()):
            yield CounterMetricFamily(name, "Counted by the router", value=value)
        for read in self._metrics.further:
            for name, value in sorted(read().items()):
                yield CounterMetricFamily(name, "Counted by the edge", value=value)

    def _is_ready(self) -> float:
        return float(self._fleet.readiness().is_ready)


def _edge(m: ServingMetrics) -> Iterable[Metric]:
    answers = _labelled("requests", "HTTP requests answered", ("endpoint", "status"))
    for labels, count in sorted(m.answers.items()):
        answers.add_metric(labels, count)
    yield answers
    yield _by_label("finished", "Sequences ended", ("reason", m.finished))
    sources = {source: m.prompt_tokens[source] for source in SOURCES}
    yield _by_label("prompt_tokens", "Prompt tokens by where KV came from", ("source", sources))
    yield _counter("output_tokens", "Tokens sent to clients", m.num_output_tokens)
    yield _counter("reasoning_tokens", "Output tokens of reasoning", m.num_reasoning_tokens)
    yield _counter("aborts", "Requests whose client left", m.num_aborts)
    yield _counter("retries", "Requests begun again after a loss", m.num_retries)
    yield _counter("late_outputs", "Outputs of requests that were over", m.num_late_outputs)
    yield _counter("preemptions", "Sequences whose blocks were taken", m.num_preemptions)
    yield _counter("sessions", "Transfer sessions of sequences that ended", m.num_sessions)
    yield _counter("sequence_retries", "Sequences begun again", m.num_sequence_retries)
    yield _counter("transfer_bytes", "KV bytes received", m.num_transfer_bytes)


def _histograms(m: ServingMetrics) -> Iterable[Metric]:
    for name, histogram in {"ttft": m.ttft, "itl": m.itl, **m.stages}.items():
        yield _histogram(f"{name}_seconds", f"{name} of a sequence [s]", histogram)
    yield _histogram("sequence_transfer_bytes", "KV bytes received for a sequence", m.bytes)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        f"headrace_{name}", text, buckets=histogram.cumulative(), sum_value=histogram.total
    )


def _ranks(loads: list[RankLoad]) -> Iterable[Metric]:
    for name, (attribute, text) in _RANK_GAUGES.items():
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=_RANK_LABELS)
        for load in loads:
            family.add_metric(_labels_of(load), float(getattr(load, attribute)))
        yield family
    for name in sorted({name for load in loads for name in load.counters}):
        yield _rank_counts(name, loads)


def _rank_counts(name: str, loads: list[RankLoad]) -> Metric:
    """Return what ranks count under ``name``, under a name that nothing of the edge's has."""
    shown = "headrace_rank_" + name.removeprefix("headrace_").removeprefix("rank_")
    # Only what ends so never falls; the rest are gauges, though a heartbeat carries both alike.
    family: CounterMetricFamily | GaugeMetricFamily = (
        CounterMetricFamily(shown, "Counted by the rank", labels=_RANK_LABELS)
        if shown.endswith("_total")
        else GaugeMetricFamily(shown, "Observed by the rank", labels=_RANK_LABELS)
    )
    for load in loads:
        if name in load.counters:
            family.add_metric(_labels_of(load), load.counters[name])
    return family


def _labels_of(load: RankLoad) -> tuple[str, str, str]:
    return (load.replica, str(load.rank), load.role.value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headrace_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"headrace_{name}", text, value=value)


def _labelled(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"headrace_{name}", text, labels=labels)


def _by_label(name: str, text: str, counted: tuple[str, Mapping[str, int]]) -> Metric:
    label, counts = counted
    family = _labelled(name, text, (label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family
