"""``bench attention`` measures the two families of attention, under its own name."""

from headrace.bench.device import run
from headrace.bench.device.registry import FAMILY_CASES
from headrace.cli.bench_attention import FAMILIES
from headrace.cli.main import main


def test_both_families_are_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(
        run, "run_bench", lambda *args, **options: iter(asked.append((args, options)) or ())
    )
    assert main(["bench", "attention", "--case", "64x4096"]) == 0
    options = {"device": "cuda:0", "matching": "64x4096", "num_replays": 100}
    assert asked == [(("attention", FAMILIES), options)]


def test_the_families_exist():
    assert set(FAMILIES) <= FAMILY_CASES.keys()
