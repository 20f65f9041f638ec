"""The facts are the system's own; what a kernel does not show is no bound."""

from __future__ import annotations

import math
import os
import platform
import resource
import socket
from pathlib import Path

import pytest

from headrace.cluster.doctor.machine import ThisMachine
from headrace.cluster.rundir import default_base

GIB = 1 << 30
MEMINFO = "MemTotal:       32000000 kB\nMemAvailable:   16777216 kB\n"


def machine_with(root: Path, **files: str) -> ThisMachine:
    """Return a machine whose kernel shows these files; ``__`` stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ThisMachine(root)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", math.inf), ("50000 100000", 0.5), ("", math.inf), ("nonsense", math.inf)],
)
def test_cores_are_those_of_the_process_cut_by_a_quota(
    tmp_path: Path, quota: str, expected: float
) -> None:
    machine = machine_with(tmp_path, sys__fs__cgroup__cpu_DOT_max=quota)
    assert machine.num_cores() == min(len(os.sched_getaffinity(0)), expected)


def test_free_memory_is_the_smaller_of_the_systems_and_the_groups(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, proc__meminfo=MEMINFO)
    assert machine.free_memory_bytes() == 16 * GIB
    machine = machine_with(
        tmp_path,
        sys__fs__cgroup__memory_DOT_max=f"{4 * GIB}\n",
        sys__fs__cgroup__memory_DOT_current=f"{GIB}\n",
    )
    assert machine.free_memory_bytes() == 3 * GIB
    machine = machine_with(tmp_path, sys__fs__cgroup__memory_DOT_max="max\n")
    assert machine.free_memory_bytes() == 16 * GIB
    assert machine_with(tmp_path / "empty").free_memory_bytes() == math.inf


def test_the_ptrace_scope_is_zero_without_yama(tmp_path: Path) -> None:
    assert machine_with(tmp_path).ptrace_scope() == 0
    machine = machine_with(tmp_path, proc__sys__kernel__yama__ptrace_scope="2\n")
    assert machine.ptrace_scope() == 2


def test_limits_are_this_processs() -> None:
    machine = ThisMachine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert machine.max_open_files() == soft - 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert machine.memlock_bytes() == (math.inf if soft == resource.RLIM_INFINITY else soft)


def test_this_machine_is_described_as_it_is() -> None:
    machine = ThisMachine()
    assert machine.architecture() == platform.machine()
    assert machine.run_base() == default_base()
    assert machine.free_shm_bytes() > 0
    assert machine.free_memory_bytes() < math.inf
    assert machine.has_module("torch")
    assert not machine.has_module("no_such_package_at_all")


def test_gpus_are_what_the_driver_lists_and_none_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ThisMachine().gpus() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho One GPU\necho Another GPU\n")
    tool.chmod(0o755)
    assert ThisMachine().gpus() == ["One GPU", "Another GPU"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert ThisMachine().gpus() == []


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert ThisMachine().folder_fault(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert ThisMachine().folder_fault(tmp_path / "none") == "No such file or directory"


def test_a_port_is_free_until_somebody_listens() -> None:
    machine = ThisMachine()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        assert machine.bind_fault("127.0.0.1", port) == "Address already in use"
        assert machine.connect_fault("127.0.0.1", port) == ""
    assert machine.bind_fault("127.0.0.1", port) == ""
    assert machine.connect_fault("127.0.0.1", port) == "Connection refused"
    assert machine.bind_fault("no host at all", 1) != ""
