"""``load --check`` prints what is in a folder, or why it cannot be served."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.support.checkpoints import TinyModel, write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model", TinyModel(num_layers=1), tokenizer=True)
    return tmp_path / "model"


def test_a_good_folder_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--check", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "8, top 2 of width 64" in captured.out
    assert captured.out.endswith("OK: every tensor used once, every parameter filled once\n")


def test_deep_reads_every_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--check", "--deep", str(folder)]) == 0
    assert "all finite" in capsys.readouterr().out


def test_a_cut_file_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["load", "--check", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"headrace: {weights}: ")
    assert captured.err.count("\n") == 1


def test_without_check_it_says_what_it_can_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", str(folder)]) == 2
    assert "headrace load --check DIR" in capsys.readouterr().err
