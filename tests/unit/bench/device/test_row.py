"""Device rows keep the contract of all benches, and need no torch to be read or made."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from headrace.bench.device.row import Measured, Setting, make_rows

# Not the real class, whose module imports torch: rows must be made without it.
CEILINGS = SimpleNamespace(
    read_bytes_per_s=4e12,
    copy_bytes_per_s=3e12,
    flops_per_s=8e14,
    floor_us=lambda num_bytes, flops: 1e6 * max(num_bytes / 4e12, flops / 8e14),
)
MACHINE = SimpleNamespace(
    name="NVIDIA Fake; host", num_processors=132, driver="1", clocks={"sm_mhz": 9.0}, versions={}
)
REQUIRED = {"bench": str, "case": str, "variant": str, "p50_us": float, "p99_us": float}
REQUIRED |= {"bytes": int, "flops": int, "floor_us": float, "fraction": float}
REQUIRED |= {"machine": str, "versions": dict, "commit": str}


def measured(kernel, p50_us, *, captured=True):
    timing = SimpleNamespace(p50_us=p50_us, p99_us=2 * p50_us, num_calls=8, num_replays=50)
    return Measured(kernel=kernel, timing=timing, captured=captured)


def rows(*kernels, may_be_cached=False):
    setting = Setting(
        bench="kernels",
        case="route/30b-a3b/t8",
        chosen="triton",
        num_bytes=4e6,
        num_flops=8e6,
        num_sets=3,
        may_be_cached=may_be_cached,
        ceilings=CEILINGS,
        baselines=("library", "reference"),
    )
    return {row["kernel"]: row for row in make_rows(setting, kernels, MACHINE)}


def test_every_row_has_what_the_contract_asks_for():
    for row in rows(measured("triton", 2.0), measured("reference", 8.0)).values():
        for key, kind in REQUIRED.items():
            assert isinstance(row[key], kind), key
        assert json.loads(json.dumps(row)) == row


def test_the_chosen_kernel_is_ours_and_others_keep_their_names():
    made = rows(measured("triton", 2.0), measured("other_triton", 3.0), measured("library", 4.0))
    variants = {kernel: row["variant"] for kernel, row in made.items()}
    assert variants == {"triton": "headrace", "other_triton": "other_triton", "library": "library"}


def test_the_fraction_is_the_floor_over_the_median():
    row = rows(measured("triton", 2.0))["triton"]
    # 4 MB at 4 TB/s.
    assert (row["floor_us"], row["fraction"], row["gb_s"]) == (1.0, 0.5, 2000.0)


def test_the_ratio_is_over_the_first_baseline_that_ran():
    made = rows(measured("triton", 2.0), measured("library", 3.0), measured("reference", 8.0))
    assert made["triton"]["baselines"] == {"library": 3.0, "reference": 8.0}
    assert (made["triton"]["baseline"], made["triton"]["ratio"]) == ("library", 1.5)
    assert made["library"]["baselines"] == {"reference": 8.0}
    without = rows(measured("triton", 2.0), measured("reference", 8.0))
    assert (without["triton"]["baseline"], without["triton"]["ratio"]) == ("reference", 4.0)


def test_without_a_baseline_there_is_no_ratio():
    assert not {"ratio", "baselines", "baseline"} & rows(measured("triton", 2.0))["triton"].keys()


@pytest.mark.parametrize("may_be_cached", [False, True])
def test_a_row_says_whether_its_inputs_may_be_cached(may_be_cached):
    row = rows(measured("triton", 2.0), may_be_cached=may_be_cached)["triton"]
    assert row["may_be_cached"] is may_be_cached


@pytest.mark.parametrize(("captured", "name"), [(True, "graph"), (False, "stream")])
def test_a_row_says_how_it_was_timed(captured, name):
    row = rows(measured("triton", 2.0, captured=captured))["triton"]
    assert (row["timing"], row["calls"], row["replays"], row["sets"]) == (name, 8, 50, 3)
    assert row["ceilings"] == {"copy_tb_s": 3.0, "read_tb_s": 4.0, "matmul_tflop_s": 800.0}
    assert row["device"] == {"processors": 132, "driver": "1", "sm_mhz": 9.0}


def test_rows_are_made_where_torch_is_not_installed():
    code = "import sys; sys.modules['torch'] = None; import headrace.bench.device.row"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
