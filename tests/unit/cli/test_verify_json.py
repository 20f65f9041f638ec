"""A report's file is refused early when it cannot be, and is JSON when it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.verify_json import check_json_file, write_json
from headrace.core.errors import ConfigError


def test_a_file_in_a_missing_folder_is_refused_before_the_run(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "report.json", tmp_path):
        with pytest.raises(ConfigError, match="a folder that exists"):
            check_json_file(path)
    check_json_file(tmp_path / "report.json")
    check_json_file(None)


def test_the_file_is_json_that_people_can_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"is_equal": True, "findings": ["a"]})
    assert json.loads(path.read_text()) == {"is_equal": True, "findings": ["a"]}
    assert len(path.read_text().splitlines()) > 3
    write_json(None, {})


def test_a_file_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_json(tmp_path, {})
