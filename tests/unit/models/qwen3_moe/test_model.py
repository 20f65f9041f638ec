from typing import Any

import pytest
import torch

from headrace.core.sharding import Role, Sharding
from headrace.models.forward_batch import SequenceChunk
from headrace.models.registry import Model
from tests.support.kernels_checks import DTYPES, assert_bits_equal
from tests.support.models_builders import (
    MOE_JSON,
    Cache,
    blocks_of,
    random_prompts,
    random_weights,
    teacher_forced_logits,
    tiny_config,
)
from tests.support.models_ranks import mono_model, run_replica
from tests.support.models_transformers import reference_logits, reference_model

PROMPTS = random_prompts((45, 17, 133, 1), vocab_size=96)

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS = {
    "renormalised": {},
    "scores as they are": {"norm_topk_prob": False},
    "tied head": {"tie_word_embeddings": True},
    "yarn": {"rope_scaling": YARN, "max_position_embeddings": 256},
    "some dense layers": {"mlp_only_layers": [1]},
    "every second layer dense": {"decoder_sparse_step": 2},
    "attention bias": {"attention_bias": True},
    "few wide experts": {"num_experts": 6, "moe_intermediate_size": 40},
    "one KV head": {"num_key_value_heads": 1},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_the_reference_librarys(name: str) -> None:
    data: dict[str, Any] = MOE_JSON | VARIANTS[name]
    config = tiny_config(data)
    weights = random_weights(config)
    ours = teacher_forced_logits(mono_model(config, weights), PROMPTS, chunk=30)
    theirs = reference_logits(reference_model(data, weights), PROMPTS)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine - reference).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_chunk_or_block_size(dtype: torch.dtype) -> None:
    config = tiny_config()
    model = mono_model(config, random_weights(config), dtype=dtype)
    expected = teacher_forced_logits(model, PROMPTS, chunk=1)
    for chunk, block_size in [(16, 16), (100, 32), (7, 64), (133, 128)]:
        logits = teacher_forced_logits(model, PROMPTS, chunk=chunk, block_size=block_size)
        for ours, same in zip(logits, expected, strict=True):
            assert_bits_equal(ours, same)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    config = tiny_config()
    model = mono_model(config, random_weights(config), dtype=dtype)
    together = teacher_forced_logits(model, PROMPTS, chunk=20)
    for prompt, logits in zip(PROMPTS, together, strict=True):
        assert_bits_equal(teacher_forced_logits(model, [prompt], chunk=20)[0], logits)


SHARDINGS = [
    (Role.PREFILL, Sharding(tp=2, ep=2)),
    (Role.PREFILL, Sharding(tp=2, ep=1)),
    (Role.PREFILL, Sharding(tp=4, ep=4)),
    (Role.PREFILL, Sharding(tp=4, ep=2)),
    (Role.PREFILL, Sharding(tp=4, ep=1)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("role", "sharding"), SHARDINGS, ids=str)
def test_logits_do_not_depend_on_how_a_prefill_replica_is_sharded(
    dtype: torch.dtype, role: Role, sharding: Sharding
) -> None:
    config = tiny_config(mlp_only_layers=[1])
    weights = random_weights(config)
    mono = teacher_forced_logits(mono_model(config, weights, dtype=dtype), PROMPTS, chunk=50)

    def work(model: Model, rank: int) -> list[torch.Tensor]:
        return teacher_forced_logits(model, PROMPTS, chunk=50)

    for logits in run_replica(config, weights, work, sharding=sharding, dtype=dtype):
        for ours, expected in zip(logits, mono, strict=True):
            assert_bits_equal(ours, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_logits_do_not_depend_on_how_a_decode_replica_is_sharded(
    dtype: torch.dtype, ranks: int
) -> None:
    config = tiny_config()
    weights = random_weights(config)
    mono = teacher_forced_logits(mono_model(config, weights, dtype=dtype), PROMPTS, chunk=15)
    longest = -(-max(map(len, PROMPTS)) // 15)

    def work(model: Model, rank: int) -> dict[int, list[torch.Tensor]]:
        """Own every ``ranks``-th prompt; step in lockstep, idle where a prompt has ended."""
        cache = Cache(model, num_blocks=96, block_size=16)
        mine = range(rank, len(PROMPTS), ranks)
        logits: dict[int, list[torch.Tensor]] = {index: [] for index in mine}
        for step in range(longest):
            alive = [index for index in mine if step * 15 < len(PROMPTS[index])]
            chunks = [
                SequenceChunk(
                    token_ids=PROMPTS[index][step * 15 : step * 15 + 15],
                    start=step * 15,
                    block_ids=blocks_of(index, num_tokens=len(PROMPTS[index]), block_size=16),
                )
                for index in alive
            ]
            rows = cache.run_all_rows(model, chunks).split([len(c.token_ids) for c in chunks])
            for index, part in zip(alive, rows, strict=True):
                logits[index].append(part)
        return logits

    sharding = Sharding(dp=ranks, ep=ranks)
    results = run_replica(config, weights, work, sharding=sharding, role=Role.DECODE, dtype=dtype)
    seen = {index: rows for result in results for index, rows in result.items()}
    assert sorted(seen) == list(range(len(PROMPTS)))
    for index, rows in seen.items():
        assert_bits_equal(torch.cat(rows), mono[index])


def test_inexact_logits_are_close() -> None:
    config = tiny_config()
    weights = random_weights(config)
    exact = teacher_forced_logits(mono_model(config, weights), PROMPTS, chunk=20)
    fast = teacher_forced_logits(mono_model(config, weights, exact=False), PROMPTS, chunk=20)
    for ours, expected in zip(fast, exact, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
