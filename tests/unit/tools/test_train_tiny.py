"""One command makes the whole folder; what it cannot use it refuses before the first step."""

import ast
import functools
import json
import logging
from pathlib import Path

import pytest
import torch

from tests.support.tiny_trainer import DOCUMENTS, SIZES
from tools import train_tiny
from tools.tiny import checkpoint, corpus, evaluate, report, samples

TOOLS = Path(train_tiny.__file__).parent
TRIAL = [
    "--device=cpu",
    "--steps=2",
    "--long-steps=1",
    "--batch-tokens=32",
    "--row-tokens=16",
    "--long-row-tokens=32",
    "--max-minutes=1e6",
    "--log-every-steps=1",
]


def write(file: Path, documents: tuple[str, ...]) -> Path:
    file.write_text("".join(f"{document}\n<|endoftext|>\n" for document in documents))
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the texts lie and the output goes; sizes and samples are made small."""
    monkeypatch.setattr(train_tiny, "TinyConfig", lambda: SIZES)
    monkeypatch.setattr(train_tiny, "POSITION_EDGES", (0, 8, 16))
    short = functools.partial(samples.write_samples, max_tokens=2)
    monkeypatch.setattr(samples, "write_samples", short)
    write(tmp_path / "grammar.txt", DOCUMENTS * 3)
    write(tmp_path / "books.txt", DOCUMENTS[:1] * 2)
    write(tmp_path / "heldout.txt", DOCUMENTS[1:])
    return tmp_path


def arguments(folder: Path, *, out: str = "out") -> list[str]:
    return [
        f"--text={folder / 'grammar.txt'}",
        f"--books={folder / 'books.txt'}",
        f"--heldout=grammar={folder / 'heldout.txt'}",
        f"--out={folder / out}",
        *TRIAL,
    ]


def test_everything_that_is_promised_is_written(folder: Path) -> None:
    train_tiny.main(arguments(folder))
    out = folder / "out"
    names = {file.name for file in out.iterdir()}
    assert names == {"files", "train.log", "evaluation.json", "samples.md", "loss.png"}
    target, mtp, tokenizer = checkpoint.load(out / "files", torch.device("cpu"))
    heldout = corpus.encode(tokenizer, DOCUMENTS[1:])
    evaluation = json.loads((out / "evaluation.json").read_text())
    # The figures are those of the files, not of the network that was still in memory.
    assert evaluation["grammar"] == evaluate.score(target, mtp, heldout)
    assert evaluation["expert_shares"] == evaluate.expert_shares(target, heldout)
    assert set(evaluation["loss_by_position_packed"]) == {"0-7", "8-15"}
    for text in samples.write_samples(target, tokenizer, seed=1):
        assert f"```text\n{text}\n```" in (out / "samples.md").read_text()
    log = (out / "train.log").read_text()
    assert "parameters: target " in log
    assert "grammar" in log.splitlines()[-2]


def test_the_same_seed_makes_the_same_files_and_another_seed_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "plot_losses", lambda history, file: None)  # half of the time
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_tiny.main([*arguments(folder, out=out), f"--seed={seed}"])
    for file in (folder / "a" / "files").iterdir():
        assert (folder / "b" / "files" / file.name).read_bytes() == file.read_bytes(), file.name
    weights = [(folder / out / "files/model.safetensors").read_bytes() for out in ("a", "c")]
    assert weights[0] != weights[1]


def test_no_log_handler_is_left_behind(folder: Path) -> None:
    with train_tiny.logging_to(folder / "out"):
        assert len(logging.getLogger("tools").handlers) == 2
    assert logging.getLogger("tools").handlers == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("--text=missing.txt", "argument --text: no such file: missing.txt"),
        ("--heldout=books", "argument --heldout: expected NAME=FILE, got 'books'"),
        ("--steps=few", "argument --steps: invalid int value: 'few'"),
        ("--max-documents=0", "expected a whole number from 1 on, got '0'"),
        ("--warmup-steps=0", "warmup_steps must be more than 0, got 0"),
        ("--batch-tokens=16", "batch_tokens must hold the longest row, 32 tokens, got 16"),
        (
            "--long-row-tokens=4096 --batch-tokens=4096",
            "the text fills no row of 4096 tokens: give more text",
        ),
    ],
    ids=lambda value: value.split()[0] if value.startswith("--") else "",
)
def test_bad_input_is_refused_with_one_line_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], *, change: str, reason: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        train_tiny.main([*arguments(folder), *change.split()])
    printed = capsys.readouterr()
    assert printed.err.startswith("train_tiny: ")
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (folder / "out").exists()


def test_an_empty_heldout_text_is_refused_before_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "heldout.txt").write_text("")
    with pytest.raises(SystemExit, match="2"):
        train_tiny.main(arguments(folder))
    assert "heldout.txt holds no document" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_the_trainer_needs_nothing_of_the_served_package() -> None:
    files = [*TOOLS.glob("*_tiny.py"), *(TOOLS / "tiny").glob("*.py")]
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "headrace" for name in modules), file
