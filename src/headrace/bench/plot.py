"""Rows of benches as pictures; needs matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.bench.rows import Row
from headrace.core.errors import ConfigError

_PANELS = (("ttft_ms", "time to first token [ms]"), ("itl_ms", "between tokens [ms]"))
_INCHES_PER_BAR = 0.16


def plot_serve(rows: Sequence[Row], path: Path) -> None:
    """Draw percentiles of the rows side by side.

    Raises:
        ConfigError: matplotlib is not installed, or the picture cannot be written.
    """
    figure = _make_figure(width=8, height=3.2)
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
    _save(figure, path)


def plot_fractions(rows: Sequence[Row], path: Path) -> None:
    """Draw the achieved fraction of each kernel's floor, kernels of a case together.

    Args:
        rows: Of a device bench; at least one.
        path: Picture to write.

    Raises:
        ConfigError: matplotlib is not installed, or the picture cannot be written.
    """
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    num_bars = len(rows) + len(cases)
    figure = _make_figure(width=9, height=1.2 + _INCHES_PER_BAR * num_bars)
    axes = figure.subplots()
    place, labels = 0, {}
    for case in cases:
        of_case = [row for row in rows if row["case"] == case]
        labels[place + (len(of_case) - 1) / 2] = case
        for row in of_case:
            color = f"C{kernels.index(row['kernel']) % 10}"
            axes.barh(place, row["fraction"], 0.9, color=color)
            place += 1
        place += 1
    for kernel in kernels:
        axes.barh(0, 0, color=f"C{kernels.index(kernel) % 10}", label=kernel)
    axes.set_yticks(list(labels), list(labels.values()), fontsize=7)
    axes.set_ylim(place, -1)
    axes.set_xlim(left=0)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("floor / measured")
    axes.legend(fontsize=7, loc="lower right")
    figure.suptitle(f"{rows[0]['bench']}: {rows[0]['machine'].partition(';')[0]}", fontsize=10)
    _save(figure, path)


def _make_figure(*, width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--png needs matplotlib: pip install 'headrace[bench]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--png {path}: cannot be written: {error}") from error
