"""A built rank of any role beats with what it holds. Opening and closing: ``test_parts``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.core.codec import Codec
from headrace.core.messages import Heartbeat
from headrace.core.sharding import Role
from headrace.engine.build_decode import build_decode
from headrace.engine.build_prefill import build_prefill
from headrace.engine.kept import Kept
from headrace.engine.parts import open_parts
from headrace.transfer.control import ControlSocket
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.engine_specs import Outbox, make_spec

TIMEOUT_S = 20.0


@pytest.mark.parametrize(
    ("role", "build"), [(Role.MONO, build_decode), (Role.PREFILL, build_prefill)]
)
def test_an_idle_rank_beats_with_all_blocks_free(tmp_path: Path, role: Role, build: object) -> None:
    folder, run_dir = tmp_path / "model", tmp_path / "run"
    run_dir.mkdir()
    write_checkpoint(folder, TinyModel(num_layers=1), tokenizer=True)
    spec = make_spec(folder, run_dir, role)
    supervisor = ControlSocket(spec.supervisor, Codec(bytes(16)))
    supervisor.open()
    with ExitStack() as stack:
        stack.callback(supervisor.close)
        parts = open_parts(spec, Outbox(), stack, Kept.of(spec))
        build(parts, stack)  # type: ignore[operator]
        assert supervisor.wait(TIMEOUT_S)
        beat = next(one for one in supervisor.recv_all() if isinstance(one, Heartbeat))
    assert (beat.replica, beat.info, beat.has_work) == (spec.replica, parts.info, False)
    assert beat.free_blocks == beat.total_blocks == parts.layout.num_blocks
    assert beat.counters["headrace_steps_total"] == 0
