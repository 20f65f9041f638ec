"""``headrace verify`` over real processes: sound deployments pass, a wrong weight is found.

One deployment and a few single ranks of a tiny random model; torch runs one thread in each, since
the ranks share the cores with whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from headrace.cli.main import main
from headrace.cli.source import resolve_model
from headrace.cli.verify import Plan, make_plan
from headrace.cli.verify_compare import Run
from headrace.cli.verify_run import run_side
from headrace.core.launch import EngineConfig
from headrace.deployment import DeploymentConfig, ReplicaConfig
from tests.support.checkpoints import (
    TinyModel,
    file_tensors,
    write_checkpoint,
    write_tensors,
)

MODEL = TinyModel(num_experts=4, hidden_size=32)
PROMPTS = (
    "Hi\nThe water came down from the hills in spring and filled the pond.\nA sixteen token.\n"
)
WRONG_LAYER = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, MODEL, tokenizer=True)
    (folder / "prompts.txt").write_text(PROMPTS)
    return folder


def plan_of(folder: Path, **engine: int) -> Plan:
    config = DeploymentConfig(
        model=str(folder),
        mono=ReplicaConfig(),
        engine=EngineConfig(threads=1, kv_cache_mib=4, **engine),
    )
    return make_plan(config, prompts=folder / "prompts.txt", max_tokens=6, seed=3)


def run_mono(plan: Plan) -> list[Run]:
    return asyncio.run(run_side(plan.config, resolve_model(plan.config.model), plan.rounds))


@pytest.fixture(scope="module")
def mono(folder: Path) -> list[Run]:
    return run_mono(plan_of(folder))


def test_a_disaggregated_deployment_passes_and_its_report_shows_the_transfer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = folder / "report.json"
    deployment = ["--prefill", "tp=2,block_size=32", "--decode", "dp=2", "--json", str(report)]
    prompts = ["--prompts", str(folder / "prompts.txt"), "--max-tokens", "6", "--seed", "3"]
    settings = ["--set", "engine.threads=1", "--set", "engine.kv_cache_mib=4"]
    assert main(["verify", str(folder), *deployment, *prompts, *settings]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("EQUAL: 6 requests, 36 output tokens, logits and KV bit-equal to mono's")
    data = json.loads(report.read_text())
    assert data["is_disaggregated"]
    ledgers = [result["ledger"] for result in data["results"]]
    assert sum(ledger["transferred_tokens"] for ledger in ledgers) > 0
    assert {ledger["decode_rank"] for ledger in ledgers} == {0, 1}


def test_another_block_and_chunk_size_compute_the_same(folder: Path, mono: list[Run]) -> None:
    plan = plan_of(folder, block_size=64, max_step_tokens=24)
    report = plan.report(expected=mono, got=run_mono(plan))
    assert report.findings(plan.show_token) == []
    assert report.is_equal


def test_a_wrong_weight_is_found_in_its_layer(
    folder: Path, mono: list[Run], tmp_path: Path
) -> None:
    weights = write_checkpoint(tmp_path, MODEL, tokenizer=True)
    weights[f"model.layers.{WRONG_LAYER}.self_attn.v_proj.weight"] *= 1.001
    write_tensors(tmp_path, file_tensors(weights))
    plan = plan_of(folder)
    wrong = msgspec.structs.replace(plan.config, model=str(tmp_path))
    got = asyncio.run(run_side(wrong, resolve_model(wrong.model), plan.rounds))
    report = plan.report(expected=mono, got=got)
    assert not report.is_equal
    assert {result.comparison.kv.layer for result in report.results} == {WRONG_LAYER}
    assert {result.comparison.kv.run for result in report.results} == {0}
    assert f"in layer {WRONG_LAYER}, tokens 0-15" in report.findings(plan.show_token)[0]
