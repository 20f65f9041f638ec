"""Flags, ``--set`` pairs and a file become one config."""

from pathlib import Path

import pytest

from headrace.cli.options import deployment_from_flags
from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig
from headrace.deployment import DeploymentConfig, ReplicaConfig
from headrace.serving.openai.config import ServingConfig


def test_no_flags_are_the_defaults() -> None:
    assert deployment_from_flags() == DeploymentConfig()


def test_every_flag_lands_in_its_place() -> None:
    assert deployment_from_flags(
        "folder",
        prefill="tp=4,ep=2,replicas=2",
        decode="dp=2, ep=2",
        transport="shm",
        dtype="bfloat16",
        exact=False,
        block_size=32,
        serving={"host": "::", "port": 0, "api_keys": ["a", "b"], "model_name": "m"},
    ) == DeploymentConfig(
        model="folder",
        prefill=ReplicaConfig(tp=4, ep=2, replicas=2),
        decode=ReplicaConfig(dp=2, ep=2),
        engine=EngineConfig(dtype="bfloat16", exact=False, block_size=32),
        serving=ServingConfig(host="::", port=0, api_keys=("a", "b"), model_name="m"),
    )


def test_flags_win_over_set_pairs_and_set_pairs_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "deploy.toml"
    file.write_text("[engine]\nblock_size = 16\nmax_sequences = 3\nthreads = 5\n")
    config = deployment_from_flags(
        config=file, settings=["engine.max_sequences=4", "engine.block_size=64"], block_size=128
    )
    assert config.engine == EngineConfig(block_size=128, max_sequences=4, threads=5)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("engine.exact=false", EngineConfig(exact=False)),
        ("engine.pinned_fraction = 0.25", EngineConfig(pinned_fraction=0.25)),
        ("engine.dtype=float32", EngineConfig(dtype="float32")),
        ('engine.dtype="float32"', EngineConfig(dtype="float32")),
    ],
)
def test_values_are_read_as_in_the_file(setting: str, expected: EngineConfig) -> None:
    assert deployment_from_flags(settings=[setting]).engine == expected


def test_a_set_pair_takes_lists_and_plain_text() -> None:
    config = deployment_from_flags(
        settings=['serving.api_keys=["a", "b"]', "serving.model_name=my model = best"]
    )
    assert config.serving.api_keys == ("a", "b")
    assert config.serving.model_name == "my model = best"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"settings": ["engine.blok_size=1"]}, "unknown key 'blok_size'; did you mean 'block_size"),
        ({"settings": ["modle=x"]}, "unknown key 'modle'; did you mean 'model'"),
        ({"settings": ["engine"]}, "--set 'engine': expected key=value"),
        ({"settings": ["=3"]}, "--set '=3': expected key=value"),
        ({"settings": ["engine=3"], "block_size": 16}, "--set engine=3: engine is a table"),
        ({"settings": ["engine.dtype=x", "engine.dtype.y=1"]}, "dtype is a table"),
        ({"settings": ["engine.threads=many"]}, "Expected `int`, got `str`"),
        ({"prefill": "tp=2"}, "prefill without decode"),
        ({"decode": "dp=2"}, "decode without prefill"),
        ({"mono": "dp=1", "prefill": "tp=1", "decode": "dp=1"}, "mono beside prefill and decode"),
        ({"prefill": "tp", "decode": "dp=1"}, "--prefill 'tp': expected key=number"),
        ({"mono": "ddp=2"}, "--mono 'ddp=2': unknown key 'ddp'; did you mean 'dp'"),
        ({"transport": "smh"}, "did you mean 'shm'"),
        ({"block_size": 24}, "block_size=24: expected a divisor of 128"),
        ({"mono": "block_size=48"}, "mono block_size=48: expected a divisor of 128"),
        ({"serving": {"port": 99999}}, "port=99999: expected 0 to 65535"),
    ],
)
def test_what_cannot_be_is_refused_by_name(flags: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deployment_from_flags(**flags)
