import pytest
import torch

from headrace.kernels.norm import rms_norm
from headrace.kernels.norm.batched import rms_norm_batched
from tests.support.kernels_checks import assert_as_accurate, random


@pytest.mark.parametrize("shape", [(1, 64), (9, 64), (3, 5, 16)])
def test_error_is_at_most_twice_the_references(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(*shape[1:], seed=1)
    wide = x.double()
    expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    assert_as_accurate(
        rms_norm_batched(x, weight, eps=1e-6),
        reference=expected,
        library=rms_norm(x, weight, eps=1e-6),
    )


def test_parts_of_wider_rows_are_normed_as_they_lie() -> None:
    x, weight = random(4, 6, 16), random(5, 16, seed=1)
    ours = rms_norm_batched(x[:, :5], weight, eps=1e-6)
    torch.testing.assert_close(ours, rms_norm(x[:, :5].contiguous(), weight, eps=1e-6))


def test_only_inexact_norms_of_few_rows_take_it() -> None:
    x, weight = random(300, 64), random(64, seed=1)
    exact = rms_norm(x, weight, eps=1e-6)
    assert torch.equal(rms_norm(x, weight, eps=1e-6, exact=False), exact)
    few = rms_norm(x[:4], weight, eps=1e-6, exact=False)
    assert torch.equal(few, rms_norm_batched(x[:4], weight, eps=1e-6))
