"""The picture shows the curves that were logged, and those only."""

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from tools.tiny.report import plot_losses

HISTORY = [
    {"step": 0, "text": 8.0, "mtp": 8.5, "rate": 0.1},
    {"step": 10, "text": 4.0, "mtp": 5.0, "rate": 0.2, "grammar": 3.5},
    {"step": 20, "text": 2.0, "mtp": 3.0, "rate": 0.0, "grammar": 2.5},
]
Curves = dict[str, tuple[list[float], list[float]]]


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Curves:
    """What is drawn, by its label."""
    drawn: Curves = {}
    plot: Callable[..., object] = Axes.plot

    def record(axes: Axes, x: list[float], y: list[float], style: str, **options: object) -> object:
        drawn[str(options["label"])] = (list(x), list(y))
        return plot(axes, x, y, style, **options)

    monkeypatch.setattr(Axes, "plot", record)
    return drawn


def test_every_logged_curve_is_drawn_at_its_steps(curves: Curves, tmp_path: Path) -> None:
    plot_losses(HISTORY, tmp_path / "loss.png")
    assert curves == {
        "training text": ([0, 10, 20], [8.0, 4.0, 2.0]),
        "MTP, training text": ([0, 10, 20], [8.5, 5.0, 3.0]),
        "held-out grammar": ([10, 20], [3.5, 2.5]),
    }
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_no_figure_stays_open(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    plot_losses(HISTORY, tmp_path / "loss.png")
    assert plt.get_fignums() == before
