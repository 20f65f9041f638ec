"""A model argument names a folder, the embedded model or a script, or is refused."""

import json
import os
from pathlib import Path

import pytest

from headrace.cli.source import resolve_model, served_model
from headrace.core.errors import CheckpointError
from headrace.core.launch import EngineConfig
from headrace.deployment import DeploymentConfig
from headrace.serving.openai.config import SamplingDefaults, ServingConfig
from tests.support.cli_model import model_source, write_model


def test_a_folder_goes_by_its_name_and_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "Some-Model")
    monkeypatch.chdir(tmp_path)
    source = resolve_model("Some-Model")
    assert source.name == "Some-Model"
    assert source.launch == str(tmp_path / "Some-Model")
    assert source.folder == tmp_path / "Some-Model"
    assert source.config.num_kv_heads == 4
    assert source.is_moe


def test_a_trailing_slash_changes_nothing(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert resolve_model(f"{folder}/") == resolve_model(str(folder))


def test_a_script_is_opened_by_absolute_path_and_has_the_embedded_models_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "tiny")
    (tmp_path / "play.jsonl").write_text('{"tokens": [1]}\n')
    monkeypatch.setattr("headrace.cli.source.embedded_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    source = resolve_model("replay:play.jsonl")
    assert source.name == "replay"
    assert source.launch == f"replay:{tmp_path / 'play.jsonl'}"
    assert source.folder == folder
    embedded = resolve_model("tiny")
    assert (embedded.name, embedded.launch) == ("tiny", str(folder))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tinny", "tinny: no such folder; expected a model folder, 'tiny'"),
        ("replay:absent.jsonl", "absent.jsonl: no such file; expected JSON lines of token ids"),
        (".", "config.json: cannot be read"),
    ],
)
def test_what_is_no_model_is_refused(
    model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        resolve_model(model)


def test_an_unsupported_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'LlamaForCausalLM': supported are"):
        model_source(tmp_path, architectures=["LlamaForCausalLM"])


def test_clients_see_the_folders_name_age_and_recommended_sampling(tmp_path: Path) -> None:
    source = model_source(tmp_path / "model")
    (source.folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    os.utime(source.folder / "config.json", (1234, 1234))
    model = served_model(source, DeploymentConfig())
    assert (model.name, model.vocab_size, model.created_s) == ("model", 261, 1234)
    assert model.max_model_tokens == 1024
    assert model.defaults == SamplingDefaults(temperature=0.6)


def test_the_operators_name_and_limit_win_but_never_raise_the_limit(tmp_path: Path) -> None:
    source = model_source(tmp_path)
    serving = ServingConfig(model_name="mine")
    for limit, expected in ((100, 100), (5000, 1024)):
        config = DeploymentConfig(engine=EngineConfig(max_model_tokens=limit), serving=serving)
        model = served_model(source, config)
        assert (model.name, model.max_model_tokens) == ("mine", expected)
