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
