"""Each check passes where it should, fails where it must, and then says what to do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headrace.cluster.doctor import checks
from headrace.cluster.doctor.checks import CHECKS, PROCESS_BYTES, check_all
from headrace.cluster.doctor.finding import Finding, Level
from tests.support.cluster_machine import GIB, NEEDS, FakeMachine, needs

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
TOTAL = 3 * GIB + (8 << 20) + 5 * PROCESS_BYTES


def test_a_machine_that_has_everything_passes_every_check() -> None:
    findings = check_all(NEEDS, FakeMachine())
    assert {finding.level for finding in findings} == {OK}
    assert len({finding.name for finding in findings}) == len(CHECKS)
    assert all(finding.expected and finding.found for finding in findings)
    assert not any(finding.action for finding in findings)


def look(name: str, machine: FakeMachine, **changes: object) -> Finding:
    return getattr(checks, f"check_{name}")(needs(**changes), machine)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "machine", "changes", "level", "words"),
    [
        ("processor", FakeMachine(arch="aarch64"), {}, FAIL, "aarch64 one rank"),
        ("processor", FakeMachine(arch="aarch64"), {"largest_replica": 1}, OK, "aarch64"),
        ("torch", FakeMachine(modules=set()), {}, FAIL, "not installed"),
        ("cores", FakeMachine(cores=4), {}, OK, "4"),
        ("cores", FakeMachine(cores=2), {"num_ranks": 5}, WARN, "up to 3 times"),
        ("cores", FakeMachine(cores=0.5), {"num_ranks": 1}, WARN, "up to 2 times"),
        ("memory", FakeMachine(memory=TOTAL - 1), {}, FAIL, "kv_cache_mib lower"),
        ("memory", FakeMachine(memory=TOTAL), {}, WARN, "little is left"),
        ("memory", FakeMachine(memory=TOTAL * 1.1), {}, OK, "weights 2.0 GiB"),
        ("memory", FakeMachine(memory=math.inf), {}, OK, "unlimited free"),
        ("shm", FakeMachine(shm=GIB), {}, FAIL, "--shm-size groups 8 MiB"),
        ("shm", FakeMachine(shm=GIB + (8 << 20)), {}, OK, "KV 1.0 GiB"),
        ("shm", FakeMachine(shm=GIB), {"transport": "tcp"}, OK, "KV 0 MiB"),
        ("shm", FakeMachine(shm=-1.0), {"kv_bytes": 0, "group_bytes": 0}, FAIL, "not writable"),
        ("port", FakeMachine(bind_faults={("127.0.0.1", 8000): "in use"}), {}, FAIL, "in use"),
        ("port", FakeMachine(), {"port": 0}, OK, "some port of 127.0.0.1"),
        ("exposure", FakeMachine(), {"host": "0.0.0.0"}, WARN, "api_keys"),
        ("exposure", FakeMachine(), {"host": "0.0.0.0", "has_keys": True}, OK, "with keys"),
        ("exposure", FakeMachine(), {"host": "::1"}, OK, "::1"),
        ("links", FakeMachine(bind_faults={("127.0.0.1", 0): "no device"}), {}, FAIL, "no device"),
        ("links", FakeMachine(), {"peers": (("h2", 7000),)}, OK, "h2:7000 reachable"),
        ("open_files", FakeMachine(files=96), {}, FAIL, "ulimit -n 1120"),
        ("open_files", FakeMachine(files=1119), {}, WARN, "ulimit -n 1120"),
        ("open_files", FakeMachine(files=1120), {}, OK, "1024 requests"),
        ("open_files", FakeMachine(files=math.inf), {}, OK, "unlimited"),
        ("run_folder", FakeMachine(base=Path("/" + "x" * 60)), {}, FAIL, "TMPDIR"),
        ("run_folder", FakeMachine(), {"longest_name": 90}, FAIL, "113 bytes"),
        ("run_folder", FakeMachine(folder_faults={Path("/tmp"): "denied"}), {}, FAIL, "denied"),
        ("memlock", FakeMachine(memlock=math.inf), {}, OK, "unlimited"),
        ("ptrace", FakeMachine(scope=3), {}, OK, "3"),
        ("gpus", FakeMachine(gpu_names=["A", "B"]), {}, OK, "A, B (not used)"),
    ],
)
def test_a_check_judges_by_what_is_needed_and_what_is_there(
    name: str, machine: FakeMachine, changes: dict[str, object], level: Level, words: str
) -> None:
    finding = look(name, machine, **changes)
    assert finding.level is level
    text = f"{finding.expected} {finding.found} {finding.action}"
    assert all(word in text for word in words.split()), text
    assert bool(finding.action) is (level is not OK)


def test_every_peer_that_cannot_be_reached_is_named() -> None:
    machine = FakeMachine(connect_faults={("h2", 7000): "timed out"})
    finding = look("links", machine, peers=(("h1", 7000), ("h2", 7000)))
    assert (finding.level, finding.found) == (FAIL, "h2:7000 timed out")
