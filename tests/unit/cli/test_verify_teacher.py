"""A device engine, here on the CPU, passes against plain torch; a wrong one does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cli import verify as verify_command
from headrace.cli.main import main
from headrace.cli.source import resolve_model
from headrace.cli.verify_compare import Run
from headrace.cli.verify_run import Request
from headrace.cli.verify_teacher import force
from headrace.core.launch import EngineConfig
from headrace.core.requests import SamplingParams
from headrace.deployment import DeploymentConfig
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.device_world import World, narrow_engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=4, max_tokens=7, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "m"
    write_checkpoint(path, TinyModel(num_layers=2), tokenizer=True)
    return path


def answer(folder: Path, *, is_device: bool = True) -> tuple[list[Request], list[Run]]:
    """Run four requests, two greedy and two drawn, on a device engine that is on the CPU."""
    world = World(folder, is_device=is_device)
    asked = [("a", GREEDY, 1), ("b", GREEDY, 40), ("c", SEEDED, 17), ("d", SEEDED, 33)]
    requests = [
        Request(prompt_ids=world.submit(name, params, length=length, trace=True), params=params)
        for name, params, length in asked
    ]
    world.drain()
    return requests, [world.run_of(name) for name, _, _ in asked]


def asked_of(requests: Sequence[Request]) -> list[tuple[str, int, str]]:
    return [
        ("p", len(each.prompt_ids), "greedy" if each.params.temperature == 0.0 else "seeded")
        for each in requests
    ]


@pytest.mark.parametrize("is_device", [True, False], ids=["device engine", "plain engine"])
def test_a_sound_engine_passes(folder: Path, is_device: bool) -> None:
    requests, runs = answer(folder, is_device=is_device)
    config = DeploymentConfig(engine=EngineConfig(exact=False, dtype="float32"))
    report = force(
        config, resolve_model(str(folder)), requests, asked=asked_of(requests), runs=runs
    )
    assert report.is_equal, report.findings()
    assert [each.num_compared for each in report.results] == [9, 9, 7, 7]
    assert 0 < report.margin < 1e-3


def test_an_eight_bit_cache_passes_by_its_own_noise_and_by_no_less(folder: Path) -> None:
    engine = narrow_engine()
    world = World(folder, is_device=True, engine=engine)
    requests = [
        Request(prompt_ids=world.submit(name, GREEDY, length=40, trace=True), params=GREEDY)
        for name in "abcd"
    ]
    world.drain()
    runs = [world.run_of(name) for name in "abcd"]
    source, asked = resolve_model(str(folder)), asked_of(requests)
    narrow, wide = (
        force(DeploymentConfig(engine=each), source, requests, asked=asked, runs=runs)
        for each in (engine, EngineConfig(exact=False, dtype="float32"))
    )
    assert narrow.is_equal, narrow.findings()
    assert not wide.is_equal


def test_an_engine_with_other_weights_does_not(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", TinyModel(num_layers=2, seed=5), tokenizer=True)
    requests, runs = answer(tmp_path / "other")
    report = force(
        DeploymentConfig(engine=EngineConfig(exact=False, dtype="float32")),
        resolve_model(str(folder)),
        requests,
        asked=asked_of(requests),
        runs=runs,
    )
    assert all(each.position == 0 for each in report.results)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_verdict_is_the_exit_code(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_wrong: bool,
) -> None:
    async def run_side(
        config: DeploymentConfig, source: object, rounds: Sequence[Sequence[Request]], **_: object
    ) -> list[Run]:
        assert config.engine.device == "cuda"
        assert config.prefill is None
        world = World(folder, is_device=True)
        requests = [request for requests in rounds for request in requests]
        for index, request in enumerate(requests):
            world.submit_ids(str(index), list(request.prompt_ids), request.params, trace=True)
        world.drain()
        runs = [world.run_of(str(index)) for index in range(len(requests))]
        return [*runs[1:], runs[0]] if is_wrong else runs

    # The rank would need a device, and so would the weights; the rest is the command's own.
    monkeypatch.setattr(verify_command, "run_side", run_side)
    monkeypatch.setattr("headrace.cli.verify_teacher.device_of", lambda engine: "cpu")
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("the same words\nthe same words\nthe same\n")
    words = ["verify", str(folder), "--device", "cuda", "--dtype", "float32", "--max-tokens", "5"]
    assert main([*words, "--prompts", str(prompts)]) == int(is_wrong)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("m: mono tp=1,dp=1,ep=1 on cuda, against plain torch")
    assert lines[-1].startswith("DIFFERENT: " if is_wrong else "WITHIN THE NOISE: 30 output")


def test_a_replay_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text("[1, 2]\n")
    assert main(["verify", f"replay:{script}", "--device", "cuda"]) == 2
    assert "a replay computes nothing" in capsys.readouterr().err
