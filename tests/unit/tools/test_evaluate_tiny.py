"""The evaluation prints the protocol's figures for a folder and a text, or one line."""

import json
from pathlib import Path

import pytest

from tests.support.tiny_trainer import DOCUMENTS, networks, tokenizer
from tools.evaluate_tiny import main
from tools.tiny import checkpoint, corpus, evaluate


@pytest.fixture
def model(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "model", *networks(), tokenizer=tokenizer())
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{document}\n<|endoftext|>\n" for document in DOCUMENTS))
    return file


def test_the_figures_are_those_of_the_protocol_as_json(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(model), str(text), "--window", "16"])
    target, mtp, read = checkpoint.load(model, networks()[0].embed_tokens.weight.device)
    expected = evaluate.score(target, mtp, corpus.encode(read, DOCUMENTS), window=16)
    assert json.loads(capsys.readouterr().out) == expected
    assert expected["documents"] == 3


def test_a_text_without_a_document_is_refused_with_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(SystemExit, match="2"):
        main([str(model), str(empty)])
    assert capsys.readouterr().err == f"evaluate_tiny: {empty} holds no document; try --help\n"


@pytest.mark.parametrize("broken", ["model", "text", "window"])
def test_a_bad_argument_is_refused_with_one_line(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str], *, broken: str
) -> None:
    arguments = {"model": str(model), "text": str(text), "window": "8"}
    arguments[broken] = "1"
    with pytest.raises(SystemExit, match="2"):
        main([arguments["model"], arguments["text"], "--window", arguments["window"]])
    message = capsys.readouterr().err
    assert message.startswith("evaluate_tiny: ")
    assert broken in message
    assert message.count("\n") == 1
