"""What a rank keeps belongs to its place in the replica, not to a generation."""

from pathlib import Path

from headrace.core.sharding import Role
from headrace.engine.kept import Kept
from tests.support.engine_specs import make_spec


def test_a_fresh_process_has_a_place_and_no_weights(tmp_path: Path) -> None:
    kept = Kept.of(make_spec(tmp_path, tmp_path, Role.MONO))
    assert kept.loaded is None
    assert (kept.group.rank, kept.group.size) == (0, 1)
