"""What Prometheus reads: counters of this edge, ledgers of finished sequences, ranks' heartbeats.

Names, all prefixed ``headrace_``:

    requests_total{endpoint,status}      HTTP requests answered, by status code
    finished_total{reason}               sequences ended: stop, length, abort, error
    requests_in_flight                   requests sent to a decode rank and not over
    aborts_total                         requests given up because their client left
    retries_total                        requests begun again after their decode rank was lost
    late_outputs_total                   outputs that came after their request was over
    prompt_tokens_total{source}          cached, transferred, computed, recomputed
    output_tokens_total                  tokens sent to clients
    reasoning_tokens_total               those of them that were reasoning
    preemptions_total                    sequences whose blocks were taken
    transfer_bytes_total                 KV bytes received by decode ranks
    ttft_seconds, itl_seconds            histograms, seen from this edge
    queue_seconds, prefill_seconds, transfer_seconds, decode_seconds   histograms, from ledgers
    ready                                1 when every replica makes progress
    rank_up, running, waiting, free_blocks, total_blocks {replica,rank,role}   gauges per rank
    rank_NAME {replica,rank}             counter NAME of a rank's heartbeat, e.g. rank_steps_total
    stale_heartbeats_total, local_prefills_total                       the router's own counters
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.core.requests import FinishReason, Ledger
from headrace.serving.fleet import Fleet, RankLoad
from headrace.serving.openai.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RANK_GAUGES = {
    "running": ("num_running", "Sequences being prefilled or decoded"),
    "waiting": ("num_waiting", "Requests not yet admitted"),
    "free_blocks": ("free_blocks", "KV blocks that can be handed out"),
    "total_blocks": ("total_blocks", "KV blocks of the pool"),
    "rank_up": ("is_up", "1 when the rank is alive and making progress"),
}


class ServingMetrics:
    """Plain numbers, changed by the event loop's thread; rendered on request, with no globals."""

    def __init__(self) -> None:
        self.ttft = Histogram()
        self.itl = Histogram()
        self.stages = {name: Histogram() for name in ("queue", "prefill", "transfer", "decode")}
        self.num_aborts = 0
        self.num_retries = 0
        self.num_late_outputs = 0
        self.num_output_tokens = 0
        self.num_reasoning_tokens = 0
        self.num_preemptions = 0
        self.num_transfer_bytes = 0
        self.answers: Counter[tuple[str, str]] = Counter()
        self.finished: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()

    def note_answer(self, endpoint: str, status: int) -> None:
        """Count an HTTP answer."""
        self.answers[endpoint, str(status)] += 1

    def note_finish(self, reason: FinishReason) -> None:
        """Count a sequence that ended."""
        self.finished[reason.value] += 1

    def note_aborted(self, *, num_sequences: int) -> None:
        """Count a request that its client deserted, with its unfinished sequences."""
        self.num_aborts += 1
        self.finished[FinishReason.ABORT.value] += num_sequences

    def note_ledger(self, ledger: Ledger) -> None:
        """Add a finished sequence's ledger."""
        for name, histogram in self.stages.items():
            histogram.observe(getattr(ledger, f"{name}_s"))
        for source in ("cached", "transferred", "computed", "recomputed"):
            self.prompt_tokens[source] += getattr(ledger, f"{source}_tokens")
        self.num_reasoning_tokens += ledger.reasoning_tokens
        self.num_preemptions += ledger.num_preemptions
        self.num_transfer_bytes += ledger.bytes_received


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
            yield CounterMetricFamily(name, "The router's own counter", value=value)

    def _is_ready(self) -> float:
        return float(self._fleet.readiness().is_ready)


def _edge(m: ServingMetrics) -> Iterable[Metric]:
    answers = _labelled("requests", "HTTP requests answered", ("endpoint", "status"))
    for labels, count in sorted(m.answers.items()):
        answers.add_metric(labels, count)
    yield answers
    yield _by_label("finished", "Sequences ended", ("reason", m.finished))
    yield _by_label(
        "prompt_tokens", "Prompt tokens by where KV came from", ("source", m.prompt_tokens)
    )
    yield _counter("output_tokens", "Tokens sent to clients", m.num_output_tokens)
    yield _counter("reasoning_tokens", "Output tokens of reasoning", m.num_reasoning_tokens)
    yield _counter("aborts", "Requests whose client left", m.num_aborts)
    yield _counter("retries", "Requests begun again after a loss", m.num_retries)
    yield _counter("late_outputs", "Outputs of requests that were over", m.num_late_outputs)
    yield _counter("preemptions", "Sequences whose blocks were taken", m.num_preemptions)
    yield _counter("transfer_bytes", "KV bytes received", m.num_transfer_bytes)


def _histograms(m: ServingMetrics) -> Iterable[Metric]:
    for name, histogram in {"ttft": m.ttft, "itl": m.itl, **m.stages}.items():
        yield HistogramMetricFamily(
            f"headrace_{name}_seconds",
            f"{name} of a sequence [s]",
            buckets=histogram.cumulative(),
            sum_value=histogram.total,
        )


def _ranks(loads: list[RankLoad]) -> Iterable[Metric]:
    for name, (attribute, text) in _RANK_GAUGES.items():
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=("replica", "rank", "role"))
        for load in loads:
            value = float(getattr(load, attribute))
            family.add_metric((load.replica, str(load.rank), load.role.value), value)
        yield family
    for name in sorted({name for load in loads for name in load.counters}):
        shown = "rank_" + name.removeprefix("headrace_").removeprefix("rank_")
        counter = _labelled(shown, "Counted by the rank", ("replica", "rank"))
        for load in loads:
            if name in load.counters:
                counter.add_metric((load.replica, str(load.rank)), load.counters[name])
        yield counter


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
