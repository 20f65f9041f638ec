"""``--against transformers``: the verdict is the exit code, a misread weight is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.cli.main import main
from headrace.models.checkpoint.load import Checkpoint
from headrace.models.slices import ParameterSpec
from tests.support.checkpoints import TinyModel, write_checkpoint

MODEL = TinyModel(num_layers=2, num_experts=4, num_kv_heads=2, num_heads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "m", MODEL, tokenizer=True)
    return tmp_path / "m"


def test_a_sound_checkpoint_passes_layer_by_layer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = folder.parent / "report.json"
    words = ["verify", str(folder), "--against", "transformers", "--json", str(report)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    stages = [line.split("max")[0].strip() for line in lines[1:5]]
    assert stages == ["embedding", "layer 0", "layer 1", "head"]
    assert lines[-1] == "EQUAL in every stage"
    assert json.loads(report.read_text())["is_equal"] is True


def test_a_misread_weight_is_named_and_the_exit_code_is_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = Checkpoint.read

    def misread(self: Checkpoint, spec: ParameterSpec, *, dtype: torch.dtype) -> Tensor:
        values = read(self, spec, dtype=dtype)
        return values * 1.1 if spec.name == "model.layers.1.self_attn.o_proj.weight" else values

    monkeypatch.setattr(Checkpoint, "read", misread)
    assert main(["verify", str(folder), "--against", "transformers"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "DIFFERENT from layer 1 on"


def test_the_longest_prompt_of_a_file_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("ab\nlonger\nabc\n")
    words = ["verify", str(folder), "--against", "transformers", "--prompts", str(prompts)]
    assert main(words) == 0
    assert "on a prompt of 6 tokens" in capsys.readouterr().out


def test_without_the_library_it_is_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["verify", str(folder), "--against", "transformers"]) == 2
    assert "not installed; pip install" in capsys.readouterr().err


def test_an_unknown_library_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--against", "torch"]) == 2
    assert "--against 'torch': expected transformers" in capsys.readouterr().err
