"""Exactly rounded building blocks: accurate, and the same bits wherever an element stands."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.kernels.sampling.elementary import exp_nonpositive, ln_unit, sum_rows


def test_exp_is_accurate_and_exact_at_zero() -> None:
    x = -torch.rand(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 600
    want = torch.tensor([math.exp(value) for value in x.tolist()], dtype=torch.float64)
    assert ((exp_nonpositive(x) - want) / want).abs().max() < 1e-11
    assert exp_nonpositive(torch.zeros(3, dtype=torch.float64)).tolist() == [1.0] * 3


def test_exp_of_the_far_tail_is_tiny_and_positive() -> None:
    x = torch.tensor([-math.inf, -1e30, -701.0], dtype=torch.float64)
    values = exp_nonpositive(x)
    assert bool((values > 0).all())
    assert values.max() < 1e-300


def test_exp_leaves_its_argument_alone() -> None:
    x = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    exp_nonpositive(x)
    assert x.tolist() == [-1.0, -2.0]


def test_ln_is_accurate_also_next_to_one() -> None:
    v = torch.rand(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = [2.0**-53, 1 - 2.0**-53, 0.5, math.sqrt(0.5), 1 - 1e-9]
    v = torch.cat([v.clamp(min=2.0**-53), torch.tensor(edges, dtype=torch.float64)])
    want = torch.tensor([math.log(value) for value in v.tolist()], dtype=torch.float64)
    assert ((ln_unit(v) - want) / want).abs().max() < 1e-11
    assert bool((ln_unit(v) < 0).all())


def test_bits_do_not_depend_on_the_place_in_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    v = torch.rand(67, dtype=torch.float64, generator=generator).clamp(min=1e-9)
    whole_exp, whole_ln = exp_nonpositive(-30 * v), ln_unit(v)
    for start in range(67):
        for stop in range(start + 1, min(67, start + 12)):
            part = v[start:stop].clone()
            assert torch.equal(exp_nonpositive(-30 * part), whole_exp[start:stop])
            assert torch.equal(ln_unit(part), whole_ln[start:stop])


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 65, 1000])
def test_row_sums_depend_on_their_row_only(width: int) -> None:
    x_BN = torch.rand(5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    before_BN = x_BN.clone()
    sums_B = sum_rows(x_BN)
    assert torch.equal(x_BN, before_BN)
    for row, total in zip(x_BN, sums_B, strict=True):
        assert torch.equal(sum_rows(row[None])[0], total)
        assert math.isclose(math.fsum(row.tolist()), float(total), rel_tol=1e-13)
