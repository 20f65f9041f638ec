"""The decode bench counts experts on the step that it times; here without a clock."""

from pathlib import Path

import pytest

from headrace.bench.device.decode import DecodeBench, DecodeCase
from headrace.core.launch import EngineConfig
from headrace.engine.device.load import load_device
from headrace.models.checkpoint.folder import read_config
from tests.support.checkpoints import TinyModel, write_checkpoint


@pytest.mark.parametrize("batch", [1, 3])
def test_experts_hit_lie_between_one_tokens_and_all(tmp_path: Path, batch: int) -> None:
    write_checkpoint(tmp_path, TinyModel(num_layers=2))
    config = read_config(tmp_path)
    engine = EngineConfig(dtype="float32", exact=False)
    backend = load_device(tmp_path, config, engine, max_tokens=128)
    case = DecodeCase(batch=batch, context=20)
    bench = DecodeBench(backend, block_size=16, largest=case)
    bench._set_up(case)
    hit = bench._experts_hit(case)
    assert config.top_k <= hit <= min(config.num_experts, batch * config.top_k)
    if batch == 1:
        assert hit == config.top_k
