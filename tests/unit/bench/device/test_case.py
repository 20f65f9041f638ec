"""Input sets of a case come from seeds of their own, in order."""

import pytest

from headrace.bench.device.case import MAX_REFERENCE_BYTES, Case, Inputs


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


@pytest.mark.parametrize(
    ("num_bytes", "reason"),
    [
        (0.0, None),
        (MAX_REFERENCE_BYTES, None),
        (31e9, "needs 31 GB of temporaries, more than the 20 GB that a reference may take"),
    ],
)
def test_a_reference_that_needs_too_much_memory_is_declined(num_bytes, reason):
    case = Case(
        name="a", sizes={}, num_bytes=1, num_flops=0, build=Inputs, reference_bytes=num_bytes
    )
    assert case.decline_reference() == reason
