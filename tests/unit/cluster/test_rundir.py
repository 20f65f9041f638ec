"""Run folders: private, short, and swept when their deployment is dead."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.cluster import rundir
from headrace.cluster.rundir import MAX_PATH_BYTES, open_run_dir, sweep_stale
from headrace.core.errors import ConfigError


@pytest.fixture
def base():
    # pytest's own folders are too deep for sockets.
    with tempfile.TemporaryDirectory(prefix="hr") as path:
        yield Path(path)


@pytest.fixture
def segments(tmp_path):
    return tmp_path


def test_a_run_folder_is_private_and_unique(base, segments):
    first, second = (open_run_dir(base, segments=segments) for _ in range(2))
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert first.deployment_id != second.deployment_id
    assert first.address("edge") == f"ipc://{first.path}/edge.ctl"
    first.remove()
    second.remove()
    assert list(base.iterdir()) == []


def test_removal_takes_the_deployments_segments_and_no_others(base, segments):
    run_dir = open_run_dir(base, segments=segments)
    (segments / f"{run_dir.deployment_id}.kv.0").touch()
    (segments / "headrace-00000000.kv.0").touch()
    (run_dir.path / "decode0.0.1.ctl").touch()
    run_dir.remove()
    run_dir.remove()
    assert [path.name for path in segments.iterdir()] == ["headrace-00000000.kv.0"]
    assert not run_dir.path.exists()


def test_what_a_killed_deployment_left_is_swept_by_the_next(base, segments):
    code = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from headrace.cluster.rundir import Path, open_run_dir
run_dir = open_run_dir(Path({str(base)!r}), segments=Path({str(segments)!r}))
(Path({str(segments)!r}) / (run_dir.deployment_id + ".kv")).touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run((sys.executable, "-c", code), check=False).returncode == -9
    (dead,) = base.iterdir()
    assert [path.name for path in segments.iterdir()] == [dead.name + ".kv"]
    living = open_run_dir(base, segments=segments)
    assert list(base.iterdir()) == [living.path]
    assert list(segments.iterdir()) == []
    living.remove()


def test_living_deployments_and_strangers_are_left_alone(base, segments):
    living = open_run_dir(base, segments=segments)
    (base / "headrace-stranger").mkdir()
    (base / "headrace-file").touch()
    (base / "headrace-link").symlink_to(living.path)
    (segments / f"{living.deployment_id}.kv").touch()
    assert sweep_stale(base, segments=segments) == []
    assert living.path.exists()
    assert len(list(segments.iterdir())) == 1
    living.remove()


def test_a_path_too_long_for_sockets_is_refused(tmp_path):
    deep = tmp_path / ("x" * MAX_PATH_BYTES)
    deep.mkdir()
    with pytest.raises(ConfigError, match="expected a path of at most 60 bytes"):
        open_run_dir(deep)


def test_a_base_that_does_not_exist_is_refused(base):
    with pytest.raises(ConfigError, match="no run folder can be made under"):
        open_run_dir(base / "gone")


def test_a_long_temporary_folder_falls_back_to_a_short_one(monkeypatch):
    for folder, chosen in (("/var/tmp", "/var/tmp"), ("/" + "x" * 50, "/tmp")):
        monkeypatch.setattr(rundir.tempfile, "gettempdir", lambda folder=folder: folder)
        assert str(rundir.default_base()) == chosen
