"""The findings as a table and as JSON, and the exit code that follows from them."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from headrace.cli import main as cli
from headrace.cli.doctor import format_json, is_fit, print_table
from headrace.cluster.doctor.checks import CHECKS
from headrace.cluster.doctor.finding import Finding, Level
from headrace.cluster.doctor.machine import ThisMachine

GOOD = Finding(name="torch", level=Level.OK, expected="installed", found="installed")
SLOW = Finding(
    name="cores", level=Level.WARN, expected="4", found="2", action="expect [half] the speed"
)
BAD = Finding(name="port", level=Level.FAIL, expected="free", found="in use", action="choose one")


def shown(findings: list[Finding]) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_table(findings, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("findings", "expected"), [([], True), ([GOOD, SLOW], True), ([GOOD, BAD], False)]
)
def test_only_a_failure_makes_a_machine_unfit(findings: list[Finding], expected: bool) -> None:
    assert is_fit(findings) is expected
    assert json.loads(format_json(findings))["is_fit"] is expected


def test_the_table_has_every_finding_and_what_to_do() -> None:
    text = shown([GOOD, SLOW, BAD])
    assert [line.split()[:2] for line in text.splitlines()[1:4]] == [
        ["ok", "torch"],
        ["warn", "cores"],
        ["fail", "port"],
    ]
    assert "warn cores: expect [half] the speed\nfail port: choose one\n" in text
    assert text.endswith("this machine cannot run the deployment: 1 failed, 1 warnings\n")
    assert shown([GOOD]).endswith("this machine can run the deployment: 0 failed, 0 warnings\n")


def test_json_has_every_field() -> None:
    (finding,) = json.loads(format_json([BAD]))["findings"]
    assert finding == {
        "name": "port",
        "level": "fail",
        "expected": "free",
        "found": "in use",
        "action": "choose one",
    }


def test_the_command_asks_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--set", "engine.kv_cache_mib=1", "--port", "0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == len(CHECKS)


def test_what_fails_is_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThisMachine, "bind_fault", lambda *_: "in use")
    assert cli.main(["doctor", "tiny"]) == 1
    assert "cannot run" in capsys.readouterr().out


def test_what_a_person_must_mend_first_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "/no/such/folder"]) == 2
    assert capsys.readouterr().err.startswith("headrace: /no/such/folder: no such folder")
