"""Every pair of shardings against mono: logits equal bit for bit, and really disaggregated.

Mono's logits are computed once per dtype; each cell of prefill TP x decode DP x block sizes must
repeat them for four prompts decoded at once, greedy and seeded. Ranks are threads of this process
here; ``test_exactness_processes`` runs cells as real processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import Output
from headrace.core.requests import SamplingParams
from headrace.core.sharding import Sharding
from headrace.models.embedded import embedded_folder
from tests.support.engine_deployment import EngineDeployment, last, logits, tokens
from tests.support.engine_prompts import PROMPTS, SETTINGS

DTYPES = ("float32", "bfloat16")
BLOCK_SIZES = ((16, 16), (16, 32), (32, 16))
TP_SIZES = (1, 2, 4)
DP_SIZES = (1, 2, 4)


def engine(dtype: str, block_size: int) -> EngineConfig:
    # A chunk of 48 tokens splits every prompt but the shortest.
    return EngineConfig(dtype=dtype, block_size=block_size, kv_cache_mib=8, max_step_tokens=48)


def run(deployment: EngineDeployment) -> list[list[Output]]:
    """Run every prompt under every setting, all at once, and return outputs in that order."""
    ids = [
        deployment.submit(prompt, params, rank=index, trace=True)
        for params in SETTINGS
        for index, prompt in enumerate(PROMPTS)
    ]
    return deployment.finish(*ids)


@pytest.fixture(scope="module", params=DTYPES)
def mono(request: pytest.FixtureRequest) -> tuple[str, list[list[Output]]]:
    with EngineDeployment(embedded_folder(), engine=engine(request.param, 16)) as deployment:
        return request.param, run(deployment)


@pytest.mark.parametrize("dp", DP_SIZES, ids=lambda dp: f"dp{dp}")
@pytest.mark.parametrize("tp", TP_SIZES, ids=lambda tp: f"tp{tp}")
@pytest.mark.parametrize("blocks", BLOCK_SIZES, ids=lambda pair: f"blocks{pair[0]}to{pair[1]}")
def test_every_sharding_computes_monos_logits_bit_for_bit(
    mono: tuple[str, list[list[Output]]], blocks: tuple[int, int], tp: int, dp: int
) -> None:
    dtype, expected = mono
    with EngineDeployment(
        embedded_folder(),
        prefill=Sharding(tp=tp, ep=tp),
        decode=Sharding(dp=dp, ep=dp),
        prefill_engine=engine(dtype, blocks[0]),
        engine=engine(dtype, blocks[1]),
    ) as deployment:
        got = run(deployment)
        deployment.wait_idle()
    check_equal(expected, got)
    check_disaggregated(got)


def check_equal(expected: Sequence[Sequence[Output]], got: Sequence[Sequence[Output]]) -> None:
    """Tokens first, since a differing token is the clearer report; then every logit's bits."""
    assert [tokens(outputs) for outputs in got] == [tokens(outputs) for outputs in expected]
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        differs = np.argwhere(logits(ours).view(np.uint32) != logits(theirs).view(np.uint32))
        assert not len(differs), f"run {index}: first differing (step, token) {differs[0]}"


def check_disaggregated(got: Sequence[Sequence[Output]]) -> None:
    """The ledger must show it: one prompt token computed here, all bytes received as planned."""
    prompts = [prompt for _ in SETTINGS for prompt in PROMPTS]
    for prompt, outputs in zip(prompts, got, strict=True):
        ledger = last(outputs).ledger
        assert ledger is not None
        assert ledger.computed_tokens <= 1
        assert ledger.cached_tokens + ledger.transferred_tokens + 1 == len(prompt)
        assert ledger.bytes_received == ledger.bytes_expected
        assert (ledger.num_sessions == 1) == (ledger.transferred_tokens > 0)
    assert sum(last(outputs).ledger.transferred_tokens for outputs in got) > 0
    assert all(last(outputs).ledger.output_tokens == 32 for outputs in got)


def test_the_settings_are_a_greedy_and_a_seeded_one() -> None:
    assert [params.temperature > 0 for params in SETTINGS] == [False, True]
    assert all(isinstance(params, SamplingParams) for params in SETTINGS)
