"""Rows of the serve bench as a picture; needs matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.bench.rows import Row
from headrace.core.errors import ConfigError

_PANELS = (("ttft_ms", "time to first token [ms]"), ("itl_ms", "between tokens [ms]"))


def plot_serve(rows: Sequence[Row], path: Path) -> None:
    """Draw percentiles of the rows side by side.

    Raises:
        ConfigError: matplotlib is not installed, or the picture cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--png needs matplotlib: pip install 'headrace[bench]'") from error
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        width = 0.8 / len(rows)
        for index, row in enumerate(rows):
            names = list(row[key])
            places = [place + index * width for place in range(len(names))]
            axes.bar(places, [row[key][name] for name in names], width, label=row["variant"])
            axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names)
        axes.set_title(title, fontsize=10)
        axes.set_yscale("log")
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(f"{rows[0]['bench']} {rows[0]['case']}", fontsize=10)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--png {path}: cannot be written: {error}") from error
