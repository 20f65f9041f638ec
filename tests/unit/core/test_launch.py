"""A launch spec crosses the process border whole."""

from __future__ import annotations

import math

import pytest

from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.sharding import Role, Sharding

SPEC = LaunchSpec(
    deployment_id="d",
    run_dir="/run/d",
    key="00" * 16,
    model="tiny",
    replica="prefill0",
    role=Role.PREFILL,
    sharding=Sharding(tp=2, ep=2),
    rank=1,
    generation=7,
    ranks_on_host=4,
    supervisor="ipc:///run/d/s",
)


def test_json_round_trip() -> None:
    assert LaunchSpec.from_json(SPEC.to_json()) == SPEC


def test_addresses_are_minted_per_generation() -> None:
    assert SPEC.address == "ipc:///run/d/prefill0.1.7.ctl"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not parse"):
        LaunchSpec.from_json(SPEC.to_json()[:-1] + b',"x":1}')


@pytest.mark.parametrize(
    "field",
    [
        {"pinned_fraction": 0.0},
        {"kv_dtype": "fp8"},
        {"kv_dtype": "int4", "device": "cuda", "exact": False},
        {"max_sequences": 0},
        {"max_step_tokens": 0},
        {"max_model_tokens": -1},
        {"threads": -1},
        {"kv_cache_mib": -1},
        {"kv_cache_mib": 2**64},
        {"heartbeat_s": 0.0},
        {"collective_timeout_s": math.nan},
        {"session_timeout_s": math.inf},
    ],
)
def test_engine_knobs_out_of_range_are_named(field: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        EngineConfig(**field)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "expected"),
    [
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "float32", "float32"),
        ("auto", "float16", "float32"),
        ("bfloat16", "float16", "bfloat16"),
    ],
)
def test_auto_runs_a_checkpoint_without_losing_values(
    asked: str, checkpoint: str, expected: str
) -> None:
    assert EngineConfig(dtype=asked).resolve_dtype(checkpoint) == expected


def test_an_eight_bit_pool_is_a_devices_and_says_so() -> None:
    with pytest.raises(ConfigError, match="kv_dtype=fp8 with device=cpu: the CPU engine and tra"):
        EngineConfig(kv_dtype="fp8")
    engine = EngineConfig(kv_dtype="fp8", device="cuda", exact=False)
    assert engine.resolve_kv_dtype("bfloat16") == "float8_e4m3fn"
    assert EngineConfig().resolve_kv_dtype("float16") == "float32"
