"""Rows say what was measured where, print as a table and append as JSON lines."""

import io
import json

from rich.console import Console

from headrace.bench.rows import commit, make_row, print_rows, write_rows


def test_a_row_says_where_it_was_measured():
    row = make_row("transfer", "shm/1MiB", value=3.5, unit="GB/s")
    assert (row["bench"], row["case"], row["variant"]) == ("transfer", "shm/1MiB", "headrace")
    assert "cores" in row["machine"]
    assert row["versions"]["torch"]
    assert json.loads(json.dumps(row)) == row


def test_rows_are_appended_as_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    for value in (1, 2):
        write_rows([make_row("b", "c", value=value)], path)
    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_table_shows_the_columns_that_rows_have():
    text = io.StringIO()
    rows = [{"case": "a", "value": 0.1234}, {"case": "b", "value": 12345.6, "ratio": 2.0}]
    columns = {"case": "case", "value": "GB/s", "ratio": "ratio"}
    print_rows(rows, columns, console=Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert lines[0].split() == ["case", "GB/s", "ratio"]
    assert lines[1].split() == ["a", "0.123"]
    assert lines[2].split() == ["b", "12345.6", "2"]


def test_the_commit_is_read_from_the_checkout(tmp_path):
    (tmp_path / ".git" / "refs").mkdir(parents=True)
    inner = tmp_path / "src" / "rows.py"
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/main\n")
    assert commit(inner) == ""
    (tmp_path / ".git" / "refs" / "main").write_text("0123456789abcdef\n")
    assert commit(inner) == "0123456789ab"
    (tmp_path / ".git" / "HEAD").write_text("fedcba98765432100\n")
    assert commit(inner) == "fedcba987654"
