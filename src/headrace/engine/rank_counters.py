"""What a rank counts, by Prometheus name, for its heartbeats. ``docs/metrics.md`` explains each.

The pulse's thread calls these while the rank works. Every name is there from the first beat on,
and every value is read by itself, so that nothing is iterated that the rank's thread changes.
Names that end in ``_total`` only grow; the others rise and fall.
"""

from __future__ import annotations

from headrace.engine.decode import DecodeCounters
from headrace.engine.parts import Parts
from headrace.engine.receiving import Receiving


def part_counters(parts: Parts) -> dict[str, float]:
    """Return what every rank counts: control socket, transport, block pool, position."""
    pool, blocks = parts.pool, parts.pool.counters
    return {
        **parts.control.counters(),
        **parts.transfer.counters(),
        "headrace_pool_blocks_allocated_total": blocks.allocated_blocks,
        "headrace_pool_blocks_evicted_total": blocks.evicted_blocks,
        "headrace_pool_blocks_quarantined_total": blocks.quarantined_blocks,
        "headrace_pool_prompt_tokens_total": blocks.opened_tokens,
        "headrace_pool_hit_tokens_total": blocks.cached_tokens,
        "headrace_pool_cached_blocks": pool.num_cached,
        "headrace_pool_pinned_blocks": pool.num_pinned,
        "headrace_pool_quarantined_blocks": pool.num_quarantined,
        "headrace_step": parts.flight.step,
        "headrace_layer": parts.flight.layer,
    }


def decode_counters(counters: DecodeCounters, receiving: Receiving | None) -> dict[str, float]:
    """Return what a decode or mono rank counts besides."""
    received: dict[str, float] = {}
    if receiving is not None:
        received = {**receiving.counters(), "headrace_session_retries_total": counters.retries}
    return {
        **received,
        "headrace_steps_total": counters.steps,
        "headrace_local_prefills_total": counters.local_prefills,
        "headrace_preemptions_total": counters.preemptions,
        "headrace_sequences_ended_total": counters.ended,
    }
