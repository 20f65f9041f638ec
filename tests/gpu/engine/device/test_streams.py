"""Two streams and a thread on the device: logits stay within the noise of the dtype."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from headrace.cli.source import resolve_model
from headrace.cli.verify_run import Request
from headrace.cli.verify_teacher import force
from headrace.core.launch import EngineConfig
from headrace.core.messages import Abort
from headrace.core.requests import SamplingParams
from headrace.deployment import DeploymentConfig
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.device_world import World

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overlap") / "m"
    # Wide enough for every kernel, so that graphs are recorded too.
    model = TinyModel(num_layers=4, hidden_size=256, head_dim=64, moe_intermediate_size=128)
    write_checkpoint(path, model, tokenizer=True)
    return path


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "fp8")]
)
@pytest.mark.parametrize("num_blocks", [96, 24])
@pytest.mark.parametrize("overlaps", [True, False])
def test_tokens_under_a_storm_are_the_models(
    folder: Path, dtype: str, kv_dtype: str, num_blocks: int, overlaps: bool
) -> None:
    engine = EngineConfig(
        device="cuda",
        dtype=dtype,
        kv_dtype=kv_dtype,
        exact=False,
        max_step_tokens=16,
        max_sequences=6,
        overlap_prefill=overlaps,
    )
    world = World(folder, is_device=True, num_blocks=num_blocks, engine=engine)
    generator, asked, aborted = random.Random(3), {}, set()
    for index in range(40):
        name, length = f"r{index}", generator.randrange(1, 64)
        asked[name] = world.submit(name, GREEDY, length=length, trace=True)
        world.step(generator.randrange(4))
        if generator.random() < 0.2:
            world.rank.abort(Abort(request_id=name))
            aborted.add(name)
    deadline_s = time.monotonic() + 60.0
    while world.rank.has_work or world.rank.wants_step:
        assert time.monotonic() < deadline_s, "did not drain"
        world.step()
    torch.cuda.synchronize()
    world.step()
    assert world.pool.is_idle
    kept = [name for name in asked if name not in aborted]
    requests = [Request(prompt_ids=asked[name], params=GREEDY) for name in kept]
    report = force(
        DeploymentConfig(engine=engine),
        resolve_model(str(folder)),
        requests,
        asked=[(name, len(asked[name]), "greedy") for name in kept],
        runs=[world.run_of(name) for name in kept],
    )
    world.stepper.close()
    assert report.is_equal, report.findings()
