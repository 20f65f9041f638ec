"""A rank reports what it cannot do in one line and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.core.codec import Codec
from headrace.core.errors import CheckpointError, ShardingError
from headrace.core.launch import LaunchSpec
from headrace.core.messages import Failed
from headrace.core.sharding import Role, Sharding
from headrace.engine.rank import run_rank
from headrace.transfer.control import ControlSocket

KEY = "00" * 16


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    return LaunchSpec(
        deployment_id="hrunit",
        run_dir=str(tmp_path),
        key=KEY,
        model="/no/such/folder",
        replica="mono0",
        role=Role.MONO,
        sharding=Sharding(),
        rank=0,
        generation=1,
        ranks_on_host=1,
        supervisor=f"ipc://{tmp_path}/supervisor",
    )


def failure_of(spec: LaunchSpec) -> Failed:
    supervisor = ControlSocket(spec.supervisor, Codec(bytes.fromhex(KEY)))
    supervisor.open()
    try:
        with pytest.raises((CheckpointError, ShardingError)):
            run_rank(spec)
        assert supervisor.wait(20.0)
        (failed,) = supervisor.recv_all()
    finally:
        supervisor.close()
    assert isinstance(failed, Failed)
    assert list(Path(spec.run_dir).iterdir()) == []
    return failed


def test_a_missing_folder_is_reported_and_nothing_is_left(spec: LaunchSpec) -> None:
    failed = failure_of(spec)
    assert (failed.replica, failed.rank, failed.is_user_error) == ("mono0", 0, True)
    assert "/no/such/folder" in failed.error


def test_a_replay_file_that_is_not_there_is_reported(spec: LaunchSpec) -> None:
    failed = failure_of(msgspec.structs.replace(spec, model="replay:/no/such/file"))
    assert "no such replay file" in failed.error
