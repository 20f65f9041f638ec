"""What exactness tests compare, and how they say where two runs part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.messages import Output
from tests.support.engine_deployment import EngineDeployment, last, logits, tokens
from tests.support.engine_prompts import PROMPTS, SETTINGS


def submit_all(deployment: EngineDeployment, *, prefill: int = 0) -> list[str]:
    """Submit every prompt under every setting, to be prefilled by one replica."""
    return [
        deployment.submit(prompt, params, rank=index, prefill=prefill, trace=True)
        for params in SETTINGS
        for index, prompt in enumerate(PROMPTS)
    ]


def run_all(deployment: EngineDeployment) -> list[list[Output]]:
    """Run every prompt under every setting, all at once, and return outputs in that order."""
    return deployment.finish(*submit_all(deployment))


def check_equal(expected: Sequence[Sequence[Output]], got: Sequence[Sequence[Output]]) -> None:
    """Tokens first, since a differing token is the clearer report; then every logit's bits."""
    assert [tokens(outputs) for outputs in got] == [tokens(outputs) for outputs in expected]
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        differs = np.argwhere(logits(ours).view(np.uint32) != logits(theirs).view(np.uint32))
        assert not len(differs), f"run {index}: first differing (step, token) {differs[0]}"


def check_disaggregated(got: Sequence[Sequence[Output]], *, replica: str = "prefill0") -> None:
    """The ledger must show it: one prompt token computed here, all bytes received as planned."""
    prompts = [prompt for _ in SETTINGS for prompt in PROMPTS]
    for prompt, outputs in zip(prompts, got, strict=True):
        ledger = last(outputs).ledger
        assert ledger is not None
        assert ledger.computed_tokens <= 1
        assert ledger.cached_tokens + ledger.transferred_tokens + 1 == len(prompt)
        assert ledger.bytes_received == ledger.bytes_expected
        assert (ledger.num_sessions == 1) == (ledger.transferred_tokens > 0)
        assert ledger.output_tokens == SETTINGS[0].max_tokens
        assert ledger.prefill_replica in ("", replica)
    received = [outputs for outputs in got if last(outputs).ledger.bytes_received]  # type: ignore[union-attr]
    assert len(received) >= len(PROMPTS) - 1
