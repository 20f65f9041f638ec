"""What a rank holds follows from its launch spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.comm.group import SingleGroup
from headrace.core.errors import ShardingError
from headrace.core.launch import EngineConfig, LaunchSpec
from headrace.core.sharding import Role, Sharding
from headrace.engine.load import load_backend
from headrace.engine.replay import ReplayBackend
from headrace.models.embedded import embedded_folder


@pytest.fixture
def replay(tmp_path: Path) -> str:
    path = tmp_path / "replay.jsonl"
    path.write_text(json.dumps({"tokens": [1, 2]}))
    return f"replay:{path}"


def make(model: str, role: Role, sharding: Sharding, **knobs: int) -> LaunchSpec:
    return LaunchSpec(
        deployment_id="d",
        run_dir="/run",
        key="00" * 16,
        model=model,
        replica="r0",
        role=role,
        sharding=sharding,
        rank=sharding.num_ranks - 1,
        generation=1,
        ranks_on_host=1,
        supervisor="ipc:///run/s",
        engine=EngineConfig(**knobs),
    )


def test_prefill_ranks_hold_their_share_of_heads(replay: str) -> None:
    spec = make(replay, Role.PREFILL, Sharding(tp=2, ep=2))
    loaded = load_backend(spec, SingleGroup(), lambda done, total: None)
    assert isinstance(loaded.backend, ReplayBackend)
    assert list(loaded.heads) == [2, 3]
    assert loaded.tokenizer_folder == embedded_folder()
    assert loaded.max_model_tokens == 8192


def test_decode_ranks_hold_all_heads_and_limits_can_be_lowered(replay: str) -> None:
    spec = make(replay, Role.DECODE, Sharding(dp=2, ep=2), max_model_tokens=100)
    loaded = load_backend(spec, SingleGroup(), lambda done, total: None)
    assert list(loaded.heads) == [0, 1, 2, 3]
    assert loaded.max_model_tokens == 100
    assert len(loaded.eos_token_ids) > 0


def test_an_impossible_sharding_is_refused_before_anything_is_read(replay: str) -> None:
    with pytest.raises(ShardingError, match="tp=8 does not divide"):
        load_backend(
            make(replay, Role.PREFILL, Sharding(tp=8, ep=8)),
            SingleGroup(),
            lambda done, total: pytest.fail("read weights"),
        )
