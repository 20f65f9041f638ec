"""The soak of ``bench`` for seconds: every answer right, and nothing left."""

from __future__ import annotations

import pytest

from bench.soak import SoakConfig, soak

SHORT = SoakConfig(
    seconds=2.0,
    concurrency=8,
    num_cases=13,
    chaos="lose=0.05,delay=5ms,duplicate=0.1,reorder=0.2",
    # Both at once: nobody can compute a prompt, and streams have nowhere to go on, for a while.
    blows="kill=prefill@500ms,kill=decode@500ms",
    deadline_s=200.0,
    # Any error would be one too many: each fault here can be got over.
    least_right=1.0,
)


@pytest.mark.timeout(600)
async def test_answers_go_on_as_if_nothing_had_happened_and_nothing_is_left() -> None:
    report = await soak(SHORT)
    assert report.faults(SHORT) == []
    assert report.outcomes()["right"] > SHORT.num_cases
    assert report.counters["headrace_retries_total"] > 0
