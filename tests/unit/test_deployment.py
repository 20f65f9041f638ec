"""One config of a deployment: its file, its cross-checks, the ranks that it starts."""

from pathlib import Path

import msgspec
import pytest

from headrace.core.chaos import WriteFaults
from headrace.core.errors import ConfigError, ShardingError
from headrace.core.launch import EngineConfig
from headrace.core.sharding import Role, Sharding
from headrace.deployment import (
    DeploymentConfig,
    ReplicaConfig,
    check_shardings,
    describe_shardings,
    launch_specs,
    load_deployment,
    num_ranks,
    parse_sharding,
)
from headrace.models.config import ModelConfig, parse_config
from headrace.serving.openai.config import ServingConfig
from tests.support.cli_model import CONFIG

MOE = parse_config(CONFIG)
DENSE = parse_config({**CONFIG, "architectures": ["Qwen3ForCausalLM"]})
SPLIT = DeploymentConfig(
    prefill=ReplicaConfig(tp=2, replicas=2), decode=ReplicaConfig(dp=2, block_size=32)
)


def specs(config: DeploymentConfig, *, is_moe: bool = True):
    return launch_specs(
        config,
        deployment_id="d",
        run_dir="/run",
        key="00" * 16,
        supervisor="ipc:///run/edge.ctl",
        model="m",
        is_moe=is_moe,
    )


def write(folder: Path, text: str) -> Path:
    file = folder / "deploy.toml"
    file.write_text(text)
    return file


def test_without_roles_a_deployment_is_one_mono_rank() -> None:
    assert DeploymentConfig().roles == ((Role.MONO, ReplicaConfig()),)
    (spec,) = specs(DeploymentConfig())
    assert (spec.name, spec.role, spec.sharding) == ("mono0.0", Role.MONO, Sharding())


def test_every_rank_of_every_replica_has_its_spec_in_order() -> None:
    made = specs(SPLIT)
    assert [spec.name for spec in made] == [
        *("prefill0.0", "prefill0.1", "prefill1.0", "prefill1.1"),
        *("decode0.0", "decode0.1"),
    ]
    assert {spec.ranks_on_host for spec in made} == {6}
    assert [spec.engine.block_size for spec in made] == [16, 16, 16, 16, 32, 32]
    assert len({spec.address for spec in made}) == 6


def test_a_role_may_have_pools_of_its_own_size() -> None:
    config = DeploymentConfig(
        prefill=ReplicaConfig(kv_cache_mib=3),
        decode=ReplicaConfig(),
        engine=EngineConfig(kv_cache_mib=8, max_sequences=5),
    )
    engines = [spec.engine for spec in specs(config)]
    assert [(one.kv_cache_mib, one.max_sequences) for one in engines] == [(3, 5), (8, 5)]
    assert parse_sharding("tp=2,kv_cache_mib=3", where="--prefill") == {"tp": 2, "kv_cache_mib": 3}


def test_experts_are_split_over_all_ranks_unless_said_otherwise_or_there_are_none() -> None:
    assert [spec.sharding.ep for spec in specs(SPLIT)] == [2] * 6
    assert [spec.sharding.ep for spec in specs(SPLIT, is_moe=False)] == [1] * 6
    assert ReplicaConfig(tp=4, ep=2).sharding(is_moe=True) == Sharding(tp=4, ep=2)


def test_ranks_are_counted_and_shardings_described() -> None:
    assert num_ranks(SPLIT, MOE) == len(specs(SPLIT))
    assert describe_shardings(SPLIT, MOE) == ("prefill tp=2,dp=1,ep=2 x2 + decode tp=1,dp=2,ep=2")


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("[prefill]\ntp = 2\n[decode]\ndp = 2", {"mono": {"dp": 2}}, [Role.MONO]),
        ("[mono]\ndp = 2", {"prefill": {}, "decode": {}}, [Role.PREFILL, Role.DECODE]),
        (
            "[prefill]\ntp = 2\n[decode]\ndp = 2",
            {"prefill": {"tp": 4}},
            [Role.PREFILL, Role.DECODE],
        ),
    ],
)
def test_flags_that_choose_roles_replace_the_files_choice(
    tmp_path: Path, text: str, overrides: dict, expected: list[Role]
) -> None:
    config = load_deployment(write(tmp_path, text), overrides)
    assert [role for role, _ in config.roles] == expected


def test_flags_change_single_keys_of_a_table(tmp_path: Path) -> None:
    file = write(tmp_path, "[prefill]\ntp = 2\nep = 2\n[decode]\ndp = 2")
    config = load_deployment(file, {"prefill": {"tp": 4}})
    assert config.prefill == ReplicaConfig(tp=4, ep=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engin]\n", r"deploy\.toml: unknown key 'engin'; did you mean 'engine'"),
        ("[decode]\nddp = 2", r"deploy\.toml\.decode: unknown key 'ddp'; did you mean 'dp'"),
        ("[serving]\nprot = 1", r"deploy\.toml\.serving: unknown key 'prot'.*'port'"),
        ("[router]\nlate = 1.0", r"deploy\.toml\.router: unknown key 'late'.*'late_s'"),
        ("[router]\nlate_s = 20.0", r"late_s=20.0, dead_s=15.0: expected 0 < late_s <= dead_s"),
        ("[mono]\ndp = 'two'", "Expected `int`, got `str`"),
        ("[mono]\nreplicas = 0", "replicas=0: expected 1 to 64"),
        ("[prefill]\ntp = 2", "prefill without decode"),
        ("transport = 'pigeon'", "transport='pigeon': expected one of shm, tcp"),
        ("[mono]\nblock_size = 48", "mono block_size=48: expected a divisor of 128"),
        ("[mono]\nkv_cache_mib = -1", "mono kv_cache_mib=-1: expected 0 to"),
        ("model = ", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_deployment(write(tmp_path, text), {})


@pytest.mark.parametrize(
    ("config", "model", "message"),
    [
        (DeploymentConfig(mono=ReplicaConfig(dp=3)), MOE, "ep=3 does not divide"),
        (DeploymentConfig(mono=ReplicaConfig(dp=0)), MOE, "dp=0: sizes start at 1"),
        (DeploymentConfig(mono=ReplicaConfig(tp=2)), MOE, "mono tp=2: attention"),
        (DeploymentConfig(mono=ReplicaConfig(dp=2, ep=2)), DENSE, "no experts to split"),
        (
            DeploymentConfig(prefill=ReplicaConfig(tp=8), decode=ReplicaConfig()),
            MOE,
            "tp=8 does not divide the model's 4 KV heads",
        ),
    ],
)
def test_shardings_that_the_model_cannot_have_are_refused(
    config: DeploymentConfig, model: ModelConfig, message: str
) -> None:
    with pytest.raises(ShardingError, match=message):
        check_shardings(config, model)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_shardings_that_it_can_have_pass(tp: int) -> None:
    config = DeploymentConfig(prefill=ReplicaConfig(tp=tp), decode=ReplicaConfig(dp=tp))
    check_shardings(config, MOE)


def test_sizes_are_read_from_key_number_pairs() -> None:
    assert parse_sharding("tp=2, ep=4,replicas=3", where="--prefill") == {
        "tp": 2,
        "ep": 4,
        "replicas": 3,
    }
    assert parse_sharding("", where="--prefill") == {}


@pytest.mark.parametrize("text", ["tp", "tp=", "tp=-1", "tp=two", "=2"])
def test_what_is_no_pair_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=number pairs such as tp=2,ep=2"):
        parse_sharding(text, where="--prefill")


def test_a_size_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp is given twice"):
        parse_sharding("tp=1,tp=2", where="--prefill")


def test_every_engine_block_size_must_divide_a_tile() -> None:
    with pytest.raises(ConfigError, match="engine block_size=0: expected a divisor"):
        DeploymentConfig(engine=EngineConfig(block_size=0))


SPANNING = """
key_file = "k"
transport = "tcp"
[hosts]
b = "10.0.0.2:7100"
c = "gpu-3:7100"
[prefill]
replicas = 2
tp = 2
hosts = ["b", "c"]
[decode]
dp = 4
"""


def test_a_replica_runs_where_its_role_says(tmp_path: Path) -> None:
    config = load_deployment(write(tmp_path, SPANNING), {})
    assert config.places == {"prefill0": "b", "prefill1": "c"}
    made = launch_specs(
        config,
        deployment_id="d",
        run_dir="/run",
        key="00" * 16,
        supervisor="tcp://10.0.0.1:7",
        model="m",
        is_moe=True,
        addresses={"here": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"},
    )
    assert [(spec.replica, spec.host, spec.ranks_on_host) for spec in made] == [
        *[("prefill0", "10.0.0.2", 2)] * 2,
        *[("prefill1", "10.0.0.3", 2)] * 2,
        *[("decode0", "10.0.0.1", 4)] * 4,
    ]
    assert all(spec.spans_hosts for spec in made)
    assert not any(spec.spans_hosts for spec in specs(SPLIT))


def test_one_name_is_for_all_replicas_and_here_is_this_host() -> None:
    replica = ReplicaConfig(replicas=3, hosts=("b",))
    assert [replica.host_of(index) for index in range(3)] == ["b", "b", "b"]
    assert ReplicaConfig(replicas=2, hosts=("here", "b")).host_of(0) == "here"
    assert ReplicaConfig(replicas=2).host_of(1) == "here"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"b", "c"', '"b", "d"', "prefill1 is to run on host 'd', which is not in .hosts."),
        ('"b", "c"', '"b", "c", "b"', "expected one name for all replicas or one for each of 2"),
        ('key_file = "k"', "", "need a key file: give --key-file FILE"),
        ('"tcp"', '"shm"', "shm' moves KV inside one host, and .* on b, c, here; .*tcp"),
        ('c = "gpu-3:7100"', 'c = "gpu-3"', "hosts.c 'gpu-3': expected HOST:PORT"),
        ("c = ", 'here = "x:1"\nc = ', "hosts.here: that is the name of this host"),
        ('"10.0.0.2:7100"', "7100", "hosts"),
    ],
    ids=["unknown", "number", "key", "shm", "address", "here", "type"],
)
def test_hosts_that_cannot_be_are_refused_in_one_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_deployment(write(tmp_path, SPANNING.replace(old, new, 1)), {})


def test_shared_memory_is_enough_where_all_of_a_deployment_is_on_one_host(tmp_path: Path) -> None:
    text = SPANNING.replace('"tcp"', '"shm"').replace('["b", "c"]', '["b"]')
    config = load_deployment(write(tmp_path, text + 'hosts = ["b"]\n'), {})
    assert set(config.places.values()) == {"b"}


def test_faults_on_purpose_reach_every_rank() -> None:
    config = msgspec.structs.replace(SPLIT, chaos="lose=0.03,delay=50ms,kill=prefill@12s")
    faults = WriteFaults(lose=0.03, delay_s=0.05)
    assert {spec.faults for spec in specs(config)} == {faults}
    assert all(spec.faults.is_calm for spec in specs(SPLIT))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_faults_on_purpose_are_refused_where_others_could_be_hit(host: str) -> None:
    with pytest.raises(ConfigError, match=f"chaos with host '{host}'.*loopback only"):
        DeploymentConfig(chaos="kill=mono@1s", serving=ServingConfig(host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_faults_on_purpose_are_taken_on_loopback(host: str) -> None:
    config = DeploymentConfig(chaos="kill=mono@1s", serving=ServingConfig(host=host))
    assert config.chaos == "kill=mono@1s"


def test_faults_that_could_not_happen_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'los'"):
        DeploymentConfig(chaos="los=1")
    with pytest.raises(ConfigError, match="a mono deployment moves no KV"):
        DeploymentConfig(chaos="lose=0.1")
