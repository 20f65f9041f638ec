"""What a deployment needs is what its ranks will take."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.needs import needs_of
from headrace.cli.source import ModelSource, resolve_model
from headrace.comm.segment import segment_bytes
from headrace.core.errors import ShardingError
from headrace.deployment import DeploymentConfig, ReplicaConfig, load_deployment
from headrace.models.checkpoint.folder import read_config
from tests.support.checkpoints import TinyModel, write_checkpoint

MIB = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, TinyModel(num_layers=2), tokenizer=True)
    return resolve_model(str(folder))


def weight_file_bytes(source: ModelSource) -> int:
    return sum(path.stat().st_size for path in Path(source.folder).glob("*.safetensors"))


def test_one_rank_holds_every_weight_once(source: ModelSource) -> None:
    needs = needs_of(DeploymentConfig(), source)
    assert read_config(source.folder).dtype == "float32"
    # The file has a header besides.
    assert 0 < weight_file_bytes(source) - needs.weight_bytes < 16 * 1024
    assert (needs.num_ranks, needs.largest_replica, needs.group_bytes) == (1, 1, 0)


def test_ranks_and_groups_add_up_over_replicas(source: ModelSource) -> None:
    config = load_deployment(
        None,
        {
            "prefill": {"tp": 2, "replicas": 2},
            "decode": {"dp": 2},
            "engine": {"kv_cache_mib": 2},
            "serving": {"port": 0, "api_keys": ["k"], "max_requests": 7},
        },
    )
    needs = needs_of(config, source)
    assert (needs.num_ranks, needs.largest_replica) == (6, 2)
    assert needs.group_bytes == 3 * segment_bytes(2)
    assert 11 * MIB < needs.kv_bytes <= 12 * MIB, "six pools of 2 MiB, cut to whole blocks"
    assert (needs.port, needs.has_keys, needs.max_requests) == (0, True, 7)
    alone = needs_of(DeploymentConfig(), source).weight_bytes
    assert alone < needs.weight_bytes < 6 * alone, "experts are shared, the rest is not"


def test_exact_mode_takes_four_bytes_a_parameter(source: ModelSource) -> None:
    def weights(**engine: object) -> int:
        return needs_of(load_deployment(None, {"engine": engine}), source).weight_bytes

    assert weights(dtype="bfloat16") == weights() == 2 * weights(dtype="bfloat16", exact=False)


def test_a_replay_has_pools_but_no_weights(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"tokens": [5]}\n')
    needs = needs_of(DeploymentConfig(), resolve_model(f"replay:{script}"))
    assert needs.weight_bytes == 0
    assert needs.kv_bytes > 0


def test_what_cannot_be_is_refused_as_serve_would(source: ModelSource) -> None:
    with pytest.raises(ShardingError):
        needs_of(DeploymentConfig(mono=ReplicaConfig(tp=3)), source)


def test_ranks_on_other_hosts_ask_nothing_of_this_one(source: ModelSource) -> None:
    alone = needs_of(DeploymentConfig(prefill=ReplicaConfig(), decode=ReplicaConfig(dp=2)), source)
    spanning = DeploymentConfig(
        prefill=ReplicaConfig(tp=2, hosts=("b",)),
        decode=ReplicaConfig(dp=2),
        hosts={"b": "10.0.0.2:7100"},
        key_file="k",
        transport="tcp",
    )
    here = needs_of(spanning, source)
    assert (here.num_ranks, alone.num_ranks) == (2, 3)
    assert here.weight_bytes < alone.weight_bytes
    elsewhere = DeploymentConfig(
        mono=ReplicaConfig(hosts=("b",)), hosts={"b": "10.0.0.2:7100"}, key_file="k"
    )
    assert needs_of(elsewhere, source).num_ranks == 0


def test_agents_of_hosts_that_run_something_are_peers(source: ModelSource) -> None:
    config = load_deployment(
        None,
        {
            "transport": "tcp",
            "key_file": "key",
            "hosts": {"b": "10.0.0.2:7100", "a": "gpu-1:7200", "idle": "10.0.0.9:7100"},
            "prefill": {"replicas": 2, "hosts": ["b", "a"]},
            "decode": {"dp": 2},
        },
    )
    assert needs_of(config, source).peers == (("gpu-1", 7200), ("10.0.0.2", 7100))
    assert needs_of(DeploymentConfig(), source).peers == ()


def test_a_pool_of_a_roles_own_size_is_counted_as_such(source: ModelSource) -> None:
    config = load_deployment(
        None,
        {
            "prefill": {"kv_cache_mib": 2},
            "decode": {"dp": 2},
            "engine": {"kv_cache_mib": 4},
        },
    )
    assert 9 * MIB < needs_of(config, source).kv_bytes <= 10 * MIB
