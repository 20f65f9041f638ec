"""A case yields a row for every kernel that runs, and says why others did not."""

from dataclasses import replace

import pytest

from headrace.bench.device.case import Baseline, Case, FamilyCases, Inputs
from headrace.bench.device.cases_route import make_case
from headrace.bench.device.ceilings import Ceilings
from headrace.bench.device.measure import Bench, find_kernels, measure, measure_case
from headrace.bench.device.registry import FAMILY_CASES
from headrace.kernels.catalogue import Family, Site, Variant, accept_all
from tests.support.device_cases import TINY
from tests.support.device_timer import MACHINE, FakeTimer


def make_bench(timer=None) -> Bench:
    return Bench(
        name="kernels",
        device="cpu",
        site=Site(),
        timer=timer or FakeTimer(),
        ceilings=Ceilings(read_bytes_per_s=4e12, flops_per_s=8e14, copy_bytes_per_s=3e12),
        machine=MACHINE,
        num_replays=7,
    )


def make_cases(calls: list, *, num_bytes=None, broken=()) -> FamilyCases:
    """Make a family of two variants and a baseline that note what they are called with."""

    def load(name):
        def function(value, *, factor):
            if name in broken:
                raise ZeroDivisionError("no\nnumber")
            calls.append((name, value, factor))

        return function

    def variant(name, decline=accept_all):
        return Variant(name=name, load=lambda: load(name), decline=decline)

    family = Family(
        name="answer",
        summary="",
        variants=(
            variant("cold_triton", lambda site: "too warm"),
            variant("triton"),
            variant("reference"),
        ),
    )
    baseline = Baseline(
        name="library",
        decline=accept_all,
        prepare=lambda inputs: lambda: load("library")(*inputs.args, factor=0),
    )

    def build(draws):
        value = int(draws.integers(1, high=1 << 30))
        return Inputs(args=(value,), kwargs={"factor": 2}, num_bytes=num_bytes)

    case = Case(name="a/t1", sizes={"num_tokens": 1}, num_bytes=100e6, num_flops=0, build=build)
    return FamilyCases(
        family=family,
        cases=(case, replace(case, name="a/t2")),
        baselines=(baseline,),
        compared_with=("library", "reference"),
        uncaptured=frozenset({"reference"}),
    )


def test_every_kernel_is_called_on_the_same_rotating_inputs():
    calls = []
    cases = make_cases(calls)
    timer = FakeTimer()
    result = measure_case(cases, cases.cases[0], make_bench(timer))
    assert [row["kernel"] for row in result.rows] == ["triton", "reference", "library"]
    values = {name: [v for n, v, _ in calls if n == name] for name in ("triton", "library")}
    assert values["triton"] == values["library"]
    # 240 MB of rotation by 100 MB a call; 2 ms of graph at 25 us a call.
    assert len(set(values["triton"])) == 3
    assert values["triton"] == values["triton"][:3] * (1 + 27)
    assert timer.recorded == [(3, False), (81, True), (3, False), (3, False), (81, True)]


def test_a_slow_kernel_is_called_less_often_in_a_graph():
    cases = make_cases([])
    timer = FakeTimer(lambda: 1500.0)
    measure_case(cases, cases.cases[0], make_bench(timer))
    assert timer.recorded == [(3, False), (3, True), (3, False), (3, False), (3, True)]


def test_rows_tell_ours_from_others_and_how_they_were_timed():
    cases = make_cases([])
    rows = measure_case(cases, cases.cases[0], make_bench()).rows
    by_kernel = {row["kernel"]: row for row in rows}
    assert by_kernel["triton"]["variant"] == "headrace"
    assert by_kernel["library"]["variant"] == "library"
    assert by_kernel["reference"]["timing"] == "stream"
    assert by_kernel["triton"]["case"] == "answer/a/t1"
    assert by_kernel["triton"]["baselines"] == {"library": 10.0, "reference": 10.0}
    assert by_kernel["triton"]["replays"] == 7
    # 100 MB at 4 TB/s.
    assert by_kernel["triton"]["fraction"] == 2.5


def test_bytes_of_the_drawn_inputs_count_where_they_are_known():
    cases = make_cases([], num_bytes=4e6)
    row = measure_case(cases, cases.cases[0], make_bench()).rows[0]
    assert (row["bytes"], row["floor_us"]) == (4_000_000, 1.0)


def test_a_variant_that_declines_is_named_with_its_reason():
    cases = make_cases([])
    result = measure_case(cases, cases.cases[0], make_bench())
    assert result.declined == {"cold_triton": "too warm"}
    assert find_kernels(cases, Site())[1] == result.declined


def test_a_reference_that_needs_too_much_memory_is_not_called():
    calls = []
    cases = make_cases(calls)
    result = measure_case(cases, replace(cases.cases[0], reference_bytes=30e9), make_bench())
    assert [row["kernel"] for row in result.rows] == ["triton", "library"]
    assert result.declined["reference"].startswith("needs 30 GB")
    assert not [name for name, *_ in calls if name == "reference"]
    assert (result.rows[0]["baseline"], result.failed) == ("library", {})


def test_rows_say_when_their_inputs_may_come_out_of_the_cache():
    cases = make_cases([], num_bytes=70e6)
    # Sets are counted by the case's bytes: drawing fewer is no reason to call them cached.
    large = measure_case(cases, cases.cases[0], make_bench()).rows[0]
    small = measure_case(cases, replace(cases.cases[0], num_bytes=7e6), make_bench()).rows[0]
    assert (large["sets"], large["may_be_cached"]) == (3, False)
    assert (small["sets"], small["may_be_cached"]) == (32, True)


def test_a_kernel_that_raises_costs_only_its_own_row():
    cases = make_cases([], broken=("triton",))
    result = measure_case(cases, cases.cases[0], make_bench())
    assert result.failed == {"triton": "ZeroDivisionError: no"}
    assert [row["kernel"] for row in result.rows] == ["reference", "library"]


def test_cases_are_chosen_by_part_of_their_names_and_memory_is_given_back():
    cases = make_cases([])
    timer = FakeTimer()
    results = list(measure([cases], make_bench(timer), matching="/t2"))
    assert [result.case for result in results] == ["answer/a/t2"]
    assert timer.num_releases == 1
    assert [r.case for r in measure([cases], make_bench())] == ["answer/a/t1", "answer/a/t2"]


@pytest.mark.parametrize("name", ["route", "rms_norm", "combine"])
def test_real_families_run_by_their_reference_on_a_cpu(name):
    cases = FAMILY_CASES[name]
    tiny = make_case(TINY, 3) if name == "route" else cases.cases[0]
    result = measure_case(cases, tiny, make_bench())
    assert not result.failed
    assert result.rows[0]["kernel"] == "reference"
    assert "triton" in result.declined
