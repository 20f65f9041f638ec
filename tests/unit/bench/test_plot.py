"""Percentiles become a picture; what is missing for it is said in one line."""

import sys

import pytest

from headrace.bench.plot import plot_serve
from headrace.core.errors import ConfigError

PERCENTILES = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
ROWS = [
    {"bench": "serve", "case": "64", "variant": name, "ttft_ms": PERCENTILES, "itl_ms": PERCENTILES}
    for name in ("split", "mono")
]


def test_a_picture_is_written(tmp_path):
    path = tmp_path / "a.png"
    plot_serve(ROWS, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_the_library_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"--png needs matplotlib: pip install"):
        plot_serve(ROWS, tmp_path / "a.png")


def test_a_picture_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        plot_serve(ROWS, tmp_path / "a.nonsense")
