"""The curve is drawn from whatever was logged."""

from pathlib import Path

import pytest

from tools.tiny.report import plot_losses


def test_a_picture_is_written_when_some_curves_have_no_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_losses([{"step": 0, "text": 8.0}, {"step": 1, "text": 4.0}], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 1000
