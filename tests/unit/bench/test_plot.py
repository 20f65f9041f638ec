"""Rows become pictures; what is missing for one is said in one line."""

import sys

import pytest

from headrace.bench.plot import plot_fractions, plot_serve
from headrace.core.errors import ConfigError

PERCENTILES = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
ROWS = [
    {"bench": "serve", "case": "64", "variant": name, "ttft_ms": PERCENTILES, "itl_ms": PERCENTILES}
    for name in ("split", "mono")
]
FRACTIONS = [
    {"bench": "kernels", "case": case, "kernel": kernel, "fraction": 0.5, "machine": "GPU; host"}
    for case in ("route/t1", "route/t8")
    for kernel in ("triton", "reference")
]
EACH_PLOT = pytest.mark.parametrize(
    ("plot", "rows"), [(plot_serve, ROWS), (plot_fractions, FRACTIONS)]
)


@EACH_PLOT
def test_a_picture_is_written(plot, rows, tmp_path):
    path = tmp_path / "a.png"
    plot(rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@EACH_PLOT
def test_without_the_library_one_line_says_how_to_get_it(plot, rows, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"--png needs matplotlib: pip install"):
        plot(rows, tmp_path / "a.png")


@EACH_PLOT
def test_a_picture_of_an_unknown_kind_is_refused(plot, rows, tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        plot(rows, tmp_path / "a.nonsense")
