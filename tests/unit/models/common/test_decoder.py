import pytest
import torch

from headrace.core.sharding import Role, Sharding
from headrace.models.forward_batch import SequenceChunk, build_forward_batch
from headrace.models.registry import load_model
from headrace.models.setup import ModelSetup
from headrace.models.shard import shard_of
from tests.support.kernels_checks import assert_bits_equal
from tests.support.models_builders import Cache, random_weights, tiny_config
from tests.support.models_ranks import mono_model

CONFIG = tiny_config()
WEIGHTS = random_weights(CONFIG)
PROMPT = SequenceChunk(token_ids=list(range(20)), start=0, block_ids=[2, 0])
LAST = SequenceChunk(token_ids=[20], start=20, block_ids=[2, 0], wants_logits=True)


class CountingExchange:
    """Counts the collectives of a step; its experts answer zero."""

    def __init__(self) -> None:
        self.num_calls = 0

    def run(self, x_TH: torch.Tensor, *_: object) -> torch.Tensor:
        self.num_calls += 1
        return torch.zeros(x_TH.shape)


def counting_model(*, ranks_share_batch: bool) -> tuple[CountingExchange, object]:
    exchange = CountingExchange()
    shard = shard_of(CONFIG, Sharding(), Role.MONO, rank=0)
    setup = ModelSetup(
        config=CONFIG,
        shard=shard,
        dtype=torch.float32,
        exchange=exchange,
        ranks_share_batch=ranks_share_batch,
    )
    return exchange, load_model(WEIGHTS, setup)


def test_a_layers_kv_is_written_when_it_is_announced_and_not_before() -> None:
    model = mono_model(CONFIG, WEIGHTS)
    cache = Cache(model, num_blocks=3, block_size=16)
    batch = build_forward_batch([PROMPT], cache.shape)
    written = []

    def on_layer(layer: int) -> None:
        flat = [pool.flatten(2, 3)[:, :, batch.slots_T] for pool in cache.pools]
        written.append((layer, [not bool(kv.isnan().any()) for kv in flat]))

    model.forward(batch, cache.pools, on_layer)
    assert written == [
        (0, [True, False, False]),
        (1, [True, True, False]),
        (2, [True, True, True]),
    ]


def test_only_the_batchs_slots_are_written() -> None:
    model = mono_model(CONFIG, WEIGHTS)
    cache = Cache(model, num_blocks=3, block_size=16)
    cache.run(model, [PROMPT])
    cache.run(model, [LAST])
    for pool in cache.pools:
        is_written = ~pool.isnan().any(dim=-1).any(dim=1).any(dim=0)
        assert is_written.sum(1).tolist() == [5, 0, 16]


def test_skipping_what_only_logits_need_leaves_the_same_cache() -> None:
    model = mono_model(CONFIG, WEIGHTS)
    skipped = Cache(model, num_blocks=3, block_size=16)
    assert skipped.run(model, [PROMPT]).shape == (0, 96)
    whole = Cache(model, num_blocks=3, block_size=16)
    whole.run_all_rows(model, [PROMPT])
    for ours, expected in zip(skipped.pools, whole.pools, strict=True):
        assert_bits_equal(ours, expected)
    assert_bits_equal(skipped.run(model, [LAST]), whole.run(model, [LAST]))


@pytest.mark.parametrize(("chunks", "calls"), [([PROMPT], 2), ([PROMPT, LAST], 3), ([], 2)])
def test_ranks_that_share_a_batch_skip_the_last_layers_collectives_alike(
    chunks: list[SequenceChunk], calls: int
) -> None:
    exchange, model = counting_model(ranks_share_batch=True)
    Cache(model, num_blocks=3, block_size=16).run(model, chunks)
    assert exchange.num_calls == calls


@pytest.mark.parametrize("chunks", [[PROMPT], [LAST], []])
def test_ranks_with_batches_of_their_own_always_meet_in_every_collective(
    chunks: list[SequenceChunk],
) -> None:
    exchange, model = counting_model(ranks_share_batch=False)
    logits = Cache(model, num_blocks=3, block_size=16).run(model, chunks)
    assert exchange.num_calls == 3
    assert logits.dtype == torch.float32
    assert logits.shape == (chunks.count(LAST), 96)


def test_layers_run_one_by_one_are_the_forward_pass() -> None:
    model = mono_model(CONFIG, WEIGHTS, dtype=torch.bfloat16)
    cache = Cache(model, num_blocks=3, block_size=16)
    batch = build_forward_batch([PROMPT], cache.shape)
    x = model.embed(batch.token_ids_T)
    for index, pool in enumerate(cache.pools):
        x = model.run_layer(index, x, batch=batch, cache=pool)
    whole = Cache(model, num_blocks=3, block_size=16)
    assert_bits_equal(model.logits(x), whole.run_all_rows(model, [PROMPT]))
    for ours, expected in zip(cache.pools, whole.pools, strict=True):
        assert_bits_equal(ours, expected)


def test_a_tied_head_is_kept_once_where_both_take_it_as_it_is() -> None:
    config = tiny_config(tie_word_embeddings=True)
    model = mono_model(config, random_weights(config))
    assert model.embedding_VH is model.head.weight_NK


def test_a_shorter_table_of_positions_gives_the_same_logits() -> None:
    shard = shard_of(CONFIG, Sharding(), Role.MONO, rank=0)
    setup = ModelSetup(config=CONFIG, shard=shard, dtype=torch.float32, num_positions=21)
    logits = []
    for model in (mono_model(CONFIG, WEIGHTS), load_model(WEIGHTS, setup)):
        cache = Cache(model, num_blocks=3, block_size=16)
        cache.run(model, [PROMPT])
        logits.append(cache.run(model, [LAST]))
    assert_bits_equal(logits[0], logits[1])
