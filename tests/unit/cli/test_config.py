"""``config show`` prints a file that gives the same deployment back."""

from pathlib import Path

import pytest

from headrace.cli.config import format_config
from headrace.cli.main import main
from headrace.deployment import DeploymentConfig, ReplicaConfig, load_deployment
from headrace.serving.openai.config import ServingConfig


def test_the_printed_config_reads_back_as_the_same(tmp_path: Path) -> None:
    config = DeploymentConfig(
        model='a "quoted" folder', prefill=ReplicaConfig(tp=2), decode=ReplicaConfig(dp=2)
    )
    file = tmp_path / "deploy.toml"
    file.write_text(format_config(config))
    assert load_deployment(file, {}) == config


def test_keys_are_counted_and_neither_shown_nor_replaced_by_another(tmp_path: Path) -> None:
    text = format_config(DeploymentConfig(serving=ServingConfig(api_keys=("s3cret", "other"))))
    assert "s3cret" not in text
    assert "# api_keys: 2 not shown" in text
    file = tmp_path / "deploy.toml"
    file.write_text(text)
    assert load_deployment(file, {}).serving.api_keys == ()


def test_show_prints_what_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--prefill", "tp=2", "--decode", "dp=2", "--block-size", "32", "--no-exact"]
    assert main(["config", "show", "folder", *flags, "--set", "serving.port=1"]) == 0
    out = capsys.readouterr().out
    for line in ('model = "folder"', "tp = 2", "block_size = 32", "exact = false", "port = 1"):
        assert f"{line}\n" in out


def test_an_unknown_key_of_a_file_names_file_table_and_nearest_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploy.toml"
    file.write_text("[prefill]\ntpp = 2\n[decode]\ndp = 1\n")
    assert main(["config", "show", "--config", str(file)]) == 2
    err = capsys.readouterr().err
    assert err == f"headrace: {file}.prefill: unknown key 'tpp'; did you mean 'tp'?\n"
