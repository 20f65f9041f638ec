"""What ``verify`` fixes before it starts anything: deployment, prompts, settings, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.verify import Plan, decode_block_size, make_plan, with_default_roles
from headrace.core.errors import ConfigError
from headrace.core.launch import EngineConfig
from headrace.core.sharding import Role
from headrace.deployment import DeploymentConfig, ReplicaConfig
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.verify_runs import run, with_kv


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "m", TinyModel(num_layers=1, max_positions=512), tokenizer=True)
    return tmp_path / "m"


def plan(folder: Path, *, max_tokens: int = 4, **config: object) -> Plan:
    deployment = with_default_roles(DeploymentConfig(model=str(folder), **config))
    return make_plan(deployment, prompts=None, max_tokens=max_tokens, seed=7)


def test_without_roles_prefill_is_apart() -> None:
    config = with_default_roles(DeploymentConfig())
    assert config.roles == (
        (Role.PREFILL, ReplicaConfig(tp=2)),
        (Role.DECODE, ReplicaConfig(dp=2)),
    )
    mono = DeploymentConfig(mono=ReplicaConfig(dp=2))
    assert with_default_roles(mono) == mono


def test_the_block_size_is_the_decode_ranks() -> None:
    engine = EngineConfig(block_size=64)
    prefill, decode = ReplicaConfig(block_size=128), ReplicaConfig(block_size=32)
    apart = DeploymentConfig(prefill=prefill, decode=decode, engine=engine)
    assert decode_block_size(apart) == 32
    assert decode_block_size(DeploymentConfig(engine=engine)) == 64


def test_every_prompt_is_asked_greedy_and_seeded(folder: Path) -> None:
    made = plan(folder)
    greedy, seeded = made.rounds
    assert [request.prompt_ids for request in greedy] == [p.token_ids for p in made.prompts]
    assert [request.prompt_ids for request in seeded] == [p.token_ids for p in made.prompts]
    assert {request.params.temperature for request in greedy} == {0.0}
    assert {(r.params.temperature, r.params.seed) for r in seeded} == {(1.0, 7)}
    assert all(request.params.ignore_eos for request in (*greedy, *seeded))
    settings = [setting for _, _, setting in made.asked]
    assert settings == ["greedy"] * len(greedy) + ["seeded"] * len(seeded)


def test_builtin_prompts_leave_room_for_the_output(folder: Path) -> None:
    made = plan(folder, max_tokens=500)
    assert max(len(prompt.token_ids) for prompt in made.prompts) == 12
    with pytest.raises(ConfigError, match="no room for a prompt"):
        plan(folder, max_tokens=512)


def test_the_report_knows_the_deployment(folder: Path) -> None:
    made = plan(folder, decode=ReplicaConfig(dp=2, block_size=32), prefill=ReplicaConfig(tp=2))
    runs = [run(num_prompt_tokens=num_tokens) for _, num_tokens, _ in made.asked]
    assert made.report(expected=runs, got=runs).is_equal
    # The fourth prompt is a block and its neighbours long: it has a second run.
    bad = [*runs[:4], with_kv(runs[4], 0, 1), *runs[5:]]
    report = made.report(expected=runs, got=bad)
    assert not report.is_equal
    assert (report.dtype, report.is_exact, report.block_size) == ("float32", True, 32)
    assert report.deployment == "prefill tp=2,dp=1,ep=2 + decode tp=1,dp=2,ep=2"


def test_tokens_are_shown_with_their_text(folder: Path) -> None:
    made = plan(folder)
    (token_id,) = made.tokenizer.encode("a")
    assert made.show_token(token_id) == f"{token_id} 'a'"
    assert made.show_token(None) == "nothing (ended)"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts", "nowhere.txt"], "expected a text file"),
        (["--prefill", "tp=2"], "prefill without decode"),
        (["--prefill", "tp=8", "--decode", "dp=2"], "does not divide the model's 4 KV heads"),
        (["--json", "no/where/report.json"], "a folder that exists"),
        (["--against", "transformers", "--prefill", "tp=2"], "--prefill beside --against"),
        (["--against", "transformers", "--no-exact"], "--exact beside --against"),
        (["--max-tokens", "0"], "Invalid value for '--max-tokens'"),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_exit_code_2(
    folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(folder), *flags]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""
