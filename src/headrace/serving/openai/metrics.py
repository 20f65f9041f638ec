"""What this edge counts: its own answers and the ledgers of sequences that ended.

``exposition`` renders it; ``docs/metrics.md`` explains every name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.histogram import BYTE_BUCKETS, Histogram

STAGES = ("queue", "prefill", "transfer", "decode")
# Cached, transferred and computed tokens add up to the prompts. Those that the prefiller had cached
# are among the transferred ones, and recomputed ones come on top.
SOURCES = ("cached", "prefiller_cached", "transferred", "computed", "recomputed")


class ServingMetrics:
    """Plain numbers, changed by the event loop's thread; rendered on request, with no globals.

    Attributes:
        further: Return more counters by Prometheus name, read whenever metrics are rendered.
    """

    def __init__(self) -> None:
        self.further: list[Callable[[], dict[str, float]]] = []
        self.ttft = Histogram()
        self.itl = Histogram()
        self.stages = {name: Histogram() for name in STAGES}
        self.bytes = Histogram(BYTE_BUCKETS)
        self.num_aborts = 0
        self.num_retries = 0
        self.num_late_outputs = 0
        self.num_output_tokens = 0
        self.num_reasoning_tokens = 0
        self.num_preemptions = 0
        self.num_sessions = 0
        self.num_sequence_retries = 0
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
        for source in SOURCES:
            self.prompt_tokens[source] += getattr(ledger, f"{source}_tokens")
        self.bytes.observe(ledger.bytes_received)
        self.num_reasoning_tokens += ledger.reasoning_tokens
        self.num_preemptions += ledger.num_preemptions
        self.num_sessions += ledger.num_sessions
        self.num_sequence_retries += ledger.num_retries
        self.num_transfer_bytes += ledger.bytes_received
