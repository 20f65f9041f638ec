"""Step plans are plain sums of their chunks."""

from __future__ import annotations

from headrace.core.plans import Chunk, StepPlan


def test_tokens_of_a_plan_are_those_of_its_chunks() -> None:
    plan = StepPlan(chunks=(Chunk("a", 0, 5), Chunk("b", 9, 1, is_decode=True)))
    assert plan.num_tokens == 6
    assert StepPlan().num_tokens == 0
