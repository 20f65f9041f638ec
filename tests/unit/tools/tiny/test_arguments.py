"""Whatever a script does not take is refused with one line that says what it would take."""

from pathlib import Path

import pytest

from tools.tiny.arguments import (
    Parser,
    at_least,
    device,
    model_folder,
    named_file,
    text_file,
)


def refusal(kind: object, argument: str, capsys: pytest.CaptureFixture[str]) -> str:
    parser = Parser(prog="script")
    parser.add_argument("--thing", type=kind)
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(["--thing", argument])
    assert exit_info.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_an_unknown_option_is_refused_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Parser(prog="script").parse_args(["--thing"])
    assert capsys.readouterr().err == "script: unrecognized arguments: --thing; try --help\n"


def test_a_file_must_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    assert f"no such file: {file}" in refusal(text_file, str(file), capsys)
    assert f"no such file: {tmp_path}" in refusal(text_file, str(tmp_path), capsys)
    file.touch()
    assert text_file(str(file)) == file


def test_a_named_file_has_a_name_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a=b.txt"
    file.touch()
    assert named_file(f"books={file}") == ("books", file)
    for argument in ("books", "books=", f"={file}"):
        message = refusal(named_file, argument, capsys)
        assert f"expected NAME=FILE, got {argument!r}" in message


def test_a_number_keeps_to_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert at_least(2)("2") == 2
    for argument in ("1", "-3", "many", "2.5"):
        message = refusal(at_least(2), argument, capsys)
        assert f"expected a whole number from 2 on, got {argument!r}" in message


def test_a_device_must_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert device("cpu").type == "cpu"
    for argument in ("abacus", "cuda:99"):
        assert f"cannot use '{argument}'" in refusal(device, argument, capsys)


def test_a_model_folder_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("config.json", "model.safetensors", "mtp.safetensors", "tokenizer.json"):
        message = refusal(model_folder, str(tmp_path), capsys)
        assert f"not a folder that the trainer wrote: no {tmp_path / file}" in message
        (tmp_path / file).touch()
    assert model_folder(str(tmp_path)) == tmp_path
