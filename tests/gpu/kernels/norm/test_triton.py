"""Norms on a device: errors of torch at most twice, rows alone, garbage that stays in its row.

Shape letters: T = rows   H = normalised width
"""

import pytest
import torch
from torch import Tensor

from headrace.kernels.norm import reference
from headrace.kernels.norm.family import ADD_RMS_NORM, RMS_NORM
from tests.support.kernels_device import normal
from tests.support.kernels_errors import assert_near

DEVICE, DTYPE = "cuda", torch.bfloat16
HIDDEN, EPS = 2048, 1e-6
NAMES = [variant.name for variant in RMS_NORM.variants if variant.name != "reference"]
# A power of two, one past it, the width of a large model, less than a warp.
WIDTHS = (HIDDEN, HIDDEN + 1, 5120, 1)


def rows_of(num_rows: int, width: int, seed: int = 0) -> Tensor:
    return normal(num_rows, width, seed=seed).to(DEVICE, DTYPE)


def exact_norm(x_TH: Tensor, weight_H: Tensor) -> Tensor:
    scale_T1 = torch.rsqrt(x_TH.square().mean(-1, keepdim=True) + EPS)
    return x_TH * scale_T1 * weight_H.double()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_rows", [0, 1, 17, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_twice_those_of_torch(name: str, num_rows: int, width: int) -> None:
    x_TH, residual_TH = rows_of(num_rows, width), rows_of(num_rows, width, seed=1)
    weight_H = rows_of(1, width, seed=2)[0]
    normed_TH = RMS_NORM.variant(name).load()(x_TH, weight_H, eps=EPS)
    plain_TH = reference.rms_norm(x_TH, weight_H, eps=EPS)
    assert_near(normed_TH, plain_TH, exact_norm(x_TH.double(), weight_H))
    add = ADD_RMS_NORM.variant(name).load()
    sums = add(x_TH, residual_TH, weight_H, eps=EPS)
    plain = reference.add_rms_norm(x_TH, residual_TH, weight_H, eps=EPS)
    stream_TH = x_TH.double() + residual_TH.double()
    assert_near(sums[0], plain[0], exact_norm(stream_TH, weight_H))
    assert_near(sums[1], plain[1], stream_TH)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros_and_garbage_stays_in_its_row(name: str) -> None:
    x_TH = rows_of(3, HIDDEN)
    x_TH[0], x_TH[2] = 0.0, torch.nan
    normed_TH = RMS_NORM.variant(name).load()(x_TH, rows_of(1, HIDDEN, seed=2)[0], eps=EPS)
    assert not normed_TH[0].any()
    assert normed_TH[1].isfinite().all()


@pytest.mark.parametrize("num_rows", [16, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str, num_rows: int) -> None:
    add = ADD_RMS_NORM.variant(name).load()
    x_TH, residual_TH = rows_of(num_rows, HIDDEN), rows_of(num_rows, HIDDEN, seed=1)
    weight_H = rows_of(1, HIDDEN, seed=2)[0]
    together = add(x_TH, residual_TH, weight_H, eps=EPS)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    moved = add(x_TH[order], residual_TH[order], weight_H, eps=EPS)
    x_TH[1:] = rows_of(num_rows - 1, HIDDEN, seed=9)
    replaced = add(x_TH, residual_TH, weight_H, eps=EPS)
    for before, after, other in zip(together, moved, replaced, strict=True):
        assert torch.equal(after, before[order])
        assert torch.equal(other[0], before[0])
