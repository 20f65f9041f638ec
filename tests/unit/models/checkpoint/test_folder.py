"""The files of a model folder: every way in which they can disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headrace.core.errors import CheckpointError
from headrace.models.checkpoint.folder import (
    INDEX_FILE,
    SINGLE_FILE,
    read_config,
    read_eos_token_ids,
    read_json,
    read_weight_files,
)
from tests.support.checkpoints import TinyModel, config_json, model_config, write_json

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": torch.ones(2)}, tmp_path / FIRST)
    save_file({"b": torch.ones(2)}, tmp_path / SECOND)
    write_json(tmp_path / INDEX_FILE, {"weight_map": {"a": FIRST, "b": SECOND}})
    return tmp_path


def refuse(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        read_weight_files(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shards_and_single_file_are_read(sharded: Path) -> None:
    assert {tensor.name for tensor in read_weight_files(sharded).tensors} == {"a", "b"}
    for path in (FIRST, SECOND, INDEX_FILE):
        (sharded / path).unlink()
    save_file({"c": torch.ones(2)}, sharded / SINGLE_FILE)
    assert {tensor.name for tensor in read_weight_files(sharded).tensors} == {"c"}


def test_separate_draft_file_is_kept_apart(sharded: Path) -> None:
    save_file({"mtp.norm.weight": torch.ones(2)}, sharded / "mtp.safetensors")
    files = read_weight_files(sharded)
    assert [tensor.name for tensor in files.mtp] == ["mtp.norm.weight"]
    assert len(files.tensors) == 2


def test_index_naming_an_absent_file_says_how_much_is_missing(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    refuse(sharded, f"names {SECOND}, which is not in the folder.*1 of 2 files and 1 tensors")


def test_index_and_files_must_agree_tensor_by_tensor(sharded: Path) -> None:
    index = sharded / INDEX_FILE
    write_json(index, {"weight_map": {"a": FIRST, "b": FIRST, "c": SECOND}})
    refuse(sharded, f"b should be in {FIRST}, but it is in {SECOND}")
    write_json(index, {"weight_map": {"a": FIRST, "b": SECOND, "c": SECOND}})
    refuse(sharded, f"c should be in {SECOND}, but no file holds it")
    save_file({"b": torch.ones(2), "d": torch.ones(2)}, sharded / SECOND)
    write_json(index, {"weight_map": {"a": FIRST, "b": SECOND}})
    refuse(sharded, f"does not name d, which is in {SECOND}")


def test_tensor_in_two_files_is_refused(sharded: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, sharded / SECOND)
    refuse(sharded, f"a is in {FIRST} and in {SECOND}: expected every tensor once")


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": [1]}])
def test_index_without_a_map_is_refused(sharded: Path, content: dict[str, object]) -> None:
    write_json(sharded / INDEX_FILE, content)
    refuse(sharded, "expected a weight_map")


def test_index_cannot_name_files_elsewhere(sharded: Path) -> None:
    write_json(sharded / INDEX_FILE, {"weight_map": {"a": "../" + FIRST}})
    refuse(sharded, "is not a file name in the folder")


def test_single_file_and_index_together_are_ambiguous(sharded: Path) -> None:
    save_file({"a": torch.ones(2)}, sharded / SINGLE_FILE)
    refuse(sharded, "are both there: remove the one not meant")


def test_weight_file_that_nothing_names_is_refused(sharded: Path) -> None:
    save_file({"z": torch.ones(2)}, sharded / "stale.safetensors")
    refuse(sharded, "stale.safetensors: a weight file that nothing names")


def test_missing_weights_say_what_was_looked_for(tmp_path: Path) -> None:
    refuse(tmp_path, f"no weights: expected {SINGLE_FILE} or {INDEX_FILE}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refuse(tmp_path, "weights in pytorch_model.bin: only safetensors are read")
    save_file({"a": torch.ones(2)}, tmp_path / FIRST)
    refuse(tmp_path, f"came {FIRST} alone: download the index as well")


def test_config_faults_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: No such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected a JSON object, came list"):
        read_json(tmp_path / "config.json")


def test_config_is_parsed(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", config_json(TinyModel()))
    assert read_config(tmp_path) == model_config(TinyModel())


def test_generation_config_decides_what_ends_a_sequence(tmp_path: Path) -> None:
    config = model_config(TinyModel())
    path = tmp_path / "generation_config.json"
    assert read_eos_token_ids(tmp_path, config) == config.eos_token_ids
    for value, want in (([1, 2], (1, 2)), (3, (3,)), (None, config.eos_token_ids)):
        path.write_text(json.dumps({"eos_token_id": value}))
        assert read_eos_token_ids(tmp_path, config) == want
    path.write_text(json.dumps({"eos_token_id": config.vocab_size}))
    with pytest.raises(CheckpointError, match=r"eos_token_id=288: expected ids under 288"):
        read_eos_token_ids(tmp_path, config)
