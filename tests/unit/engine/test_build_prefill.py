"""A built prefill rank knows the heads of all ranks. Opening and closing: ``test_parts``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from headrace.core.sharding import Role
from headrace.engine.build_prefill import source_layouts
from headrace.engine.kept import Kept
from headrace.engine.parts import open_parts
from tests.support.checkpoints import TinyModel, write_checkpoint
from tests.support.engine_specs import Outbox, make_spec


def test_source_layouts_are_equal_but_for_the_heads(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, TinyModel(num_layers=1), tokenizer=True)
    with ExitStack() as stack:
        spec = make_spec(folder, tmp_path, Role.PREFILL)
        parts = open_parts(spec, Outbox(), stack, Kept.of(spec))
        two, four = source_layouts(parts.layout, 2), source_layouts(parts.layout, 4)
    assert [list(one.heads) for one in two] == [[0, 1], [2, 3]]
    assert [list(one.heads) for one in four] == [[0], [1], [2], [3]]
    assert {one.num_blocks for one in four} == {parts.layout.num_blocks}
