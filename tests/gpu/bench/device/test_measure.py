"""The smallest case of every family runs on the device by every kernel that accepts it."""

import pytest

from headrace.bench.device.ceilings import Ceilings
from headrace.bench.device.machine import describe_machine
from headrace.bench.device.measure import Bench, measure_case
from headrace.bench.device.registry import FAMILY_CASES
from headrace.bench.device.timing import CudaTimer
from headrace.kernels.site import detect_site


@pytest.mark.parametrize("name", FAMILY_CASES)
def test_every_kernel_runs_and_has_a_row(name):
    cases = FAMILY_CASES[name]
    bench = Bench(
        name="kernels",
        device="cuda:0",
        site=detect_site("cuda:0", dtype="bfloat16", sizes={}),
        timer=CudaTimer(),
        ceilings=Ceilings(read_bytes_per_s=4e12, flops_per_s=7e14),
        machine=describe_machine("cuda:0"),
        num_replays=5,
    )
    smallest = min(cases.cases, key=lambda case: case.num_bytes)
    result = measure_case(cases, smallest, bench)
    bench.timer.release()
    assert not result.failed
    kernels = {row["kernel"] for row in result.rows}
    named = {each.name for each in (*cases.family.variants, *cases.baselines)}
    assert kernels | set(result.declined) == named
    assert any(row["variant"] == "headrace" for row in result.rows)
