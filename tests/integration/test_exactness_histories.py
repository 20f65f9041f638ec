"""Where a sequence's KV came from never shows in its logits: hits, chunks, preemption, choices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.launch import EngineConfig
from headrace.core.messages import Output
from headrace.core.requests import Ledger, SamplingParams
from headrace.core.sharding import Sharding
from headrace.models.embedded import embedded_folder
from tests.support.engine_deployment import EngineDeployment, last, tokens
from tests.support.engine_prompts import GREEDY, PROMPTS, SEEDED
from tests.support.exactness import check_equal

LONG = PROMPTS[-1]
FRESH = EngineConfig(dtype="bfloat16", kv_cache_mib=8, prefix_cache=False)


def mono(prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Output]]:
    """Run prompts one after another on one rank that remembers nothing."""
    with EngineDeployment(embedded_folder(), engine=FRESH) as deployment:
        return [deployment.run([prompt], params, trace=True)[0] for prompt in prompts]


def apart(engine: EngineConfig, prefill_engine: EngineConfig | None = None) -> EngineDeployment:
    return EngineDeployment(
        embedded_folder(),
        prefill=Sharding(tp=2, ep=2),
        decode=Sharding(dp=2, ep=2),
        engine=engine,
        prefill_engine=prefill_engine or engine,
    )


def ledger_of(outputs: Sequence[Output]) -> Ledger:
    ledger = last(outputs).ledger
    assert ledger is not None
    return ledger


def test_prefix_hits_on_either_side_change_nothing() -> None:
    prompts = [LONG[:100], LONG, LONG[:100] + LONG[:60], LONG]
    expected = mono(prompts, SEEDED)
    cached = EngineConfig(dtype="bfloat16", kv_cache_mib=8)
    for decode_caches, prefill_caches in ((True, True), (True, False), (False, True)):
        with apart(
            cached if decode_caches else FRESH, cached if prefill_caches else FRESH
        ) as deployment:
            got = [deployment.run([prompt], SEEDED, trace=True)[0] for prompt in prompts]
        check_equal(expected, got)
        hits = [ledger_of(outputs).cached_tokens for outputs in got]
        prefill_hits = [ledger_of(outputs).prefiller_cached_tokens for outputs in got]
        assert (sum(hits) > 0) == decode_caches
        assert (sum(prefill_hits) > 0) == prefill_caches


@pytest.mark.parametrize("chunk", [1, 16, 33, 512])
def test_chunks_of_any_size_change_nothing(chunk: int) -> None:
    expected = mono([LONG], GREEDY)
    engine = EngineConfig(dtype="bfloat16", kv_cache_mib=8, max_step_tokens=chunk)
    with apart(engine) as deployment:
        check_equal(expected, deployment.run([LONG], GREEDY, trace=True))
    with EngineDeployment(embedded_folder(), engine=engine) as deployment:
        check_equal(expected, deployment.run([LONG], GREEDY, trace=True))


def test_preempted_sequences_go_on_with_the_same_logits() -> None:
    prompts = [LONG[start : start + 90] for start in (0, 13, 26, 39)]
    params = SamplingParams(max_tokens=48, temperature=0.8, seed=5, ignore_eos=True)
    expected = mono(prompts, params)
    # One MiB holds 512 tokens in bf16, less than one rank's share of these sequences at once.
    tight = EngineConfig(dtype="bfloat16", kv_cache_mib=1, prefix_cache=False)
    with apart(tight, FRESH) as deployment:
        ids = [deployment.submit(prompt, params, rank=0, trace=True) for prompt in prompts * 2]
        got = deployment.finish(*ids)
        deployment.wait_idle()
    check_equal(expected * 2, got)
    assert sum(ledger_of(outputs).num_preemptions for outputs in got) > 0
    assert sum(ledger_of(outputs).recomputed_tokens for outputs in got) > 0
    assert all(ledger_of(outputs).computed_tokens <= 1 for outputs in got)


def test_choices_of_a_shared_prompt_are_the_same_with_and_without_a_prefiller() -> None:
    with EngineDeployment(embedded_folder(), engine=FRESH) as deployment:
        request = deployment.submit(LONG, SEEDED, num_choices=3)
        (expected,) = deployment.finish(request, num_choices=3)
    with apart(FRESH) as deployment:
        request = deployment.submit(LONG, SEEDED, num_choices=3)
        (got,) = deployment.finish(request, num_choices=3)
    drawn = [tokens(expected, choice) for choice in range(3)]
    assert [tokens(got, choice) for choice in range(3)] == drawn
    assert drawn[0] != drawn[1] != drawn[2]


def test_neighbours_in_the_batch_change_nothing() -> None:
    expected = mono([LONG], SEEDED)
    with apart(FRESH) as deployment:
        others = [deployment.submit(LONG[i:], GREEDY, rank=i) for i in range(1, 8)]
        mine = deployment.submit(LONG, SEEDED, rank=0, trace=True)
        got = deployment.finish(mine, *others)[:1]
    check_equal(expected, got)
