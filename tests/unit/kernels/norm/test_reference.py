import pytest
import torch
import torch.nn.functional as F

from headrace.kernels.norm import add_rms_norm, rms_norm
from tests.support.kernels_checks import DTYPES, assert_as_accurate, assert_bits_equal, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 32, 160, 1001])
def test_error_is_at_most_twice_the_librarys(dtype: torch.dtype, width: int) -> None:
    x, weight = random(19, width, dtype=dtype), random(width, seed=1, dtype=dtype)
    assert_as_accurate(
        rms_norm(x, weight, eps=1e-6),
        reference=F.rms_norm(x.double(), (width,), weight.double(), 1e-6),
        # Rounded before the weight, as the reference models do.
        library=F.rms_norm(x, (width,), eps=1e-6) * weight,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 160, 1001])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, width: int) -> None:
    x, weight = random(257, width, dtype=dtype), random(width, seed=1, dtype=dtype)
    whole = rms_norm(x, weight, eps=1e-6)
    for start, stop in [(0, 1), (1, 4), (100, 257)]:
        assert_bits_equal(rms_norm(x[start:stop], weight, eps=1e-6), whole[start:stop])


def test_each_head_may_have_its_own_weight() -> None:
    x, weight = random(5, 3, 16), random(3, 16, seed=1)
    alone = torch.stack([rms_norm(x[:, h], weight[h], eps=1e-6) for h in range(3)], dim=1)
    assert_bits_equal(rms_norm(x, weight, eps=1e-6), alone)


def test_zero_rows_stay_zero() -> None:
    assert not rms_norm(torch.zeros(2, 8), random(8), eps=1e-6).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_branch_is_rounded_before_it_is_added(dtype: torch.dtype) -> None:
    branch, residual = random(6, 40, seed=1), random(6, 40, dtype=dtype)
    before = residual.clone()
    normed, stream = add_rms_norm(branch, residual, torch.ones(40, dtype=dtype), eps=1e-6)
    assert_bits_equal(stream, residual + branch.to(dtype))
    assert_bits_equal(normed, rms_norm(stream, torch.ones(40, dtype=dtype), eps=1e-6))
    assert_bits_equal(residual, before)


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(torch.zeros(0, 8), random(8), eps=1e-6).shape == (0, 8)
