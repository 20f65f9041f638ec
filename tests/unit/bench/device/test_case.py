"""Input sets of a case come from seeds of their own, in order."""

from headrace.bench.device.case import Case, Inputs


def test_each_set_is_built_from_its_own_seed():
    case = Case(
        name="a",
        sizes={},
        num_bytes=1,
        num_flops=0,
        build=lambda draws: Inputs(args=(int(draws.integers(1, high=1 << 30)),)),
    )
    values = [inputs.args[0] for inputs in case.inputs("cpu", count=5)]
    assert len(set(values)) == 5
    assert [inputs.args[0] for inputs in case.inputs("cpu", count=3)] == values[:3]
