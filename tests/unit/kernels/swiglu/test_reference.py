import pytest
import torch
import torch.nn.functional as F

from headrace.kernels.swiglu import swiglu
from tests.support.kernels_checks import DTYPES, assert_as_accurate, assert_bits_equal, random


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_at_most_twice_the_librarys(dtype: torch.dtype) -> None:
    x = random(37, 2 * 51, dtype=dtype) * 4
    (gate, up), (gate64, up64) = x.chunk(2, dim=1), x.double().chunk(2, dim=1)
    assert_as_accurate(swiglu(x), reference=F.silu(gate64) * up64, library=F.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 5, 16, 33])
def test_an_element_does_not_depend_on_its_place(dtype: torch.dtype, width: int) -> None:
    gate = random(4096, dtype=dtype) * 4
    whole = swiglu(torch.stack((gate, torch.ones_like(gate)), dim=1))[:, 0]
    cut = gate[: 4096 // width * width].view(-1, width)
    rows = swiglu(torch.cat((cut, torch.ones_like(cut)), dim=1))
    assert_bits_equal(rows.flatten(), whole[: rows.numel()])


def test_extreme_gates_saturate() -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 2.0, 3.0]])
    assert swiglu(gate_up).tolist() == [[0.0, 3e4]]


def test_no_rows_give_no_rows() -> None:
    assert swiglu(torch.zeros(0, 8)).shape == (0, 4)
