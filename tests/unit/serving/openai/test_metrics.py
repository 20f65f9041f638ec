"""Ledgers and ends add up to counters."""

from headrace.core.requests import FinishReason, Ledger
from headrace.serving.openai.metrics import ServingMetrics


def test_ledgers_add_up() -> None:
    metrics = ServingMetrics()
    ledger = Ledger(
        cached_tokens=1,
        computed_tokens=2,
        recomputed_tokens=3,
        prefiller_cached_tokens=4,
        num_preemptions=1,
        num_sessions=2,
        num_retries=1,
        bytes_received=2048,
    )
    metrics.note_ledger(ledger)
    metrics.note_ledger(ledger)
    assert metrics.prompt_tokens == {
        "cached": 2,
        "prefiller_cached": 8,
        "computed": 4,
        "recomputed": 6,
        "transferred": 0,
    }
    assert (metrics.num_preemptions, metrics.num_sessions) == (2, 4)
    assert (metrics.num_sequence_retries, metrics.num_transfer_bytes) == (2, 4096)
    assert (metrics.bytes.count, metrics.bytes.total) == (2, 4096)
    assert metrics.stages["decode"].count == 2


def test_deserted_sequences_are_counted_as_aborted() -> None:
    metrics = ServingMetrics()
    metrics.note_aborted(num_sequences=3)
    metrics.note_finish(FinishReason.STOP)
    assert (metrics.num_aborts, metrics.finished) == (1, {"abort": 3, "stop": 1})
