import pytest

from headrace.core.errors import ShardingError
from headrace.core.sharding import Role, Sharding
from headrace.models.shard import dense_parts, expert_groups, expert_width_parts, shard_of
from tests.support.models_builders import DENSE_JSON, tiny_config


@pytest.mark.parametrize(
    ("experts", "groups"), [(128, 16), (16, 16), (8, 8), (60, 4), (7, 1), (512, 16), (1, 1)]
)
def test_expert_groups_are_a_power_of_two_of_at_most_16(experts: int, groups: int) -> None:
    assert expert_groups(experts) == groups


@pytest.mark.parametrize(("width", "parts"), [(64, 4), (768, 4), (96, 1), (32, 1), (128, 4)])
def test_width_parts_keep_at_least_16_columns(width: int, parts: int) -> None:
    assert expert_width_parts(width) == parts


@pytest.mark.parametrize(("width", "parts"), [(128, 16), (100, 4), (7, 1), (12288, 16)])
def test_dense_parts_divide_the_width(width: int, parts: int) -> None:
    assert dense_parts(width) == parts


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_prefill_ranks_together_hold_everything_once(ep: int) -> None:
    config = tiny_config()
    sharding = Sharding(tp=4, ep=ep)
    shards = [shard_of(config, sharding, Role.PREFILL, rank=rank) for rank in range(4)]
    assert [head for s in shards for head in s.q_heads] == list(range(8))
    assert [head for s in shards for head in s.kv_heads] == list(range(4))
    assert [column for s in shards for column in s.dense_columns] == list(range(128))
    held = [(expert, part) for s in shards for expert in s.experts for part in s.width_parts]
    assert sorted(held) == [(expert, part) for expert in range(16) for part in range(4)]
    for shard in shards:
        columns = [16 * part + column for part in shard.width_parts for column in range(16)]
        assert list(shard.expert_columns) == columns
        assert shard.owns_whole_width == (ep == 4)


def test_neighbouring_prefill_ranks_share_experts() -> None:
    shards = [
        shard_of(tiny_config(), Sharding(tp=4, ep=2), Role.PREFILL, rank=rank) for rank in range(4)
    ]
    assert [s.experts.start for s in shards] == [0, 0, 8, 8]
    assert [s.width_parts.start for s in shards] == [0, 2, 0, 2]


@pytest.mark.parametrize("role", [Role.DECODE, Role.MONO])
def test_decode_ranks_split_nothing_but_experts(role: Role) -> None:
    for rank in range(4):
        shard = shard_of(tiny_config(), Sharding(dp=4, ep=4), role, rank=rank)
        assert (shard.tp_rank, shard.tp_size) == (0, 1)
        assert (len(shard.q_heads), len(shard.kv_heads)) == (8, 4)
        assert list(shard.experts) == list(range(4 * rank, 4 * rank + 4))
        assert shard.owns_whole_width


def test_a_dense_model_holds_no_experts() -> None:
    for role, sharding in [(Role.PREFILL, Sharding(tp=2)), (Role.DECODE, Sharding(dp=2))]:
        shard = shard_of(tiny_config(DENSE_JSON), sharding, role, rank=1)
        assert len(shard.experts) == 0
        assert shard.num_expert_groups == 0


@pytest.mark.parametrize(
    ("changes", "sharding", "words"),
    [
        ({"moe_intermediate_size": 96}, Sharding(tp=2), ("width 96", "1 width parts")),
        ({"num_key_value_heads": 8}, Sharding(tp=8), ("tp/ep=8", "4 width parts")),
        (
            {"mlp_only_layers": [0], "intermediate_size": 100, "num_key_value_heads": 8},
            Sharding(tp=8, ep=8),
            ("dense MLP of width 100", "4 parts"),
        ),
        (
            {"mlp_only_layers": [0], "intermediate_size": 32},
            Sharding(tp=4, ep=4),
            ("dense MLP of width 32",),
        ),
        ({"num_key_value_heads": 2}, Sharding(tp=4, ep=4), ("2 KV heads",)),
    ],
)
def test_shardings_that_cannot_be_are_refused_by_name(
    changes: dict[str, object], sharding: Sharding, words: tuple[str, ...]
) -> None:
    with pytest.raises(ShardingError) as caught:
        shard_of(tiny_config(**changes), sharding, Role.PREFILL, rank=0)
    for word in words:
        assert word in str(caught.value)
