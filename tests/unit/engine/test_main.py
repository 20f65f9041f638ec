"""``python -m headrace.engine`` speaks JSON and exit codes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine import __main__ as entry


def test_a_launch_spec_that_does_not_parse_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"rank": "x"}')))
    monkeypatch.setattr(entry.signal, "signal", lambda *_: None)
    assert entry.main() == 2
    assert capsys.readouterr().err.startswith("launch spec does not parse")


def test_leaving_flushes_and_keeps_the_exit_code() -> None:
    script = "from headrace.engine.__main__ import leave; print('last word'); leave(2)"
    source = str(Path(entry.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": source},
    )
    assert (done.returncode, done.stdout) == (2, b"last word\n")
