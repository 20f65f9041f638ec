"""The norm kernels, in the interpreter, against the plain ones."""

import pytest
import torch

from headrace.kernels.norm import reference, triton
from tests.support.kernels_device import normal


@pytest.mark.parametrize(("num_rows", "width"), [(0, 16), (1, 1), (3, 48), (5, 160)])
def test_norms_are_the_references(num_rows: int, width: int) -> None:
    x, residual = normal(num_rows, width), normal(num_rows, width, seed=1)
    weight = normal(width, seed=2)
    torch.testing.assert_close(
        triton.rms_norm(x, weight, eps=1e-6), reference.rms_norm(x, weight, eps=1e-6)
    )
    sums = triton.add_rms_norm(x, residual, weight, eps=1e-6)
    for result, plain in zip(
        sums, reference.add_rms_norm(x, residual, weight, eps=1e-6), strict=True
    ):
        torch.testing.assert_close(result, plain)


def test_a_zero_row_stays_zero() -> None:
    assert torch.equal(
        triton.rms_norm(torch.zeros(1, 8), torch.ones(8), eps=1e-6)[0], torch.zeros(8)
    )


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter computes with NaN
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_garbage_stays_in_its_row(bad: float) -> None:
    x, residual, weight = normal(3, 40), normal(3, 40, seed=1), normal(40, seed=2)
    together = triton.add_rms_norm(x, residual, weight, eps=1e-6)
    x[1] = bad
    beside = triton.add_rms_norm(x, residual, weight, eps=1e-6)
    for before, after in zip(together, beside, strict=True):
        assert torch.equal(after[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("width", [15, 16, 17])
def test_what_lies_past_a_row_does_not_count(width: int) -> None:
    rows = torch.full((2, width), torch.nan)
    rows[0] = 2.0
    normed = triton.rms_norm(rows, torch.ones(width), eps=0.0)
    torch.testing.assert_close(normed[0], torch.ones(width))
