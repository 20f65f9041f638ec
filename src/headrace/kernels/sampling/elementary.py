"""exp, ln and row sums made only of exactly rounded operations.

A library's vector and scalar versions of ``exp`` differ in the last bit, and which one an element
meets depends on its place in the flattened batch and on the thread count; a library's row sum may
split a row over threads. Here every step is one IEEE add, multiply, divide or integer operation
on each element by itself, so a row's result depends on that row alone, on any device.

Left out: accuracy to the last bit (relative error is about 1e-11) and arguments that sampling
never meets (positive exponents, subnormals, NaN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# ln 2 in two parts (the published constants of fdlibm): the first has 32 significant bits, so
# that its product with a small integer is exact and reducing the exponent loses nothing.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_MIN_EXPONENT = -700.0
_EXP_TERMS = 10
_LN_TERMS = 8
_SQRT2 = math.sqrt(2.0)


def exp_nonpositive(x: Tensor) -> Tensor:
    """Return e to the power of x for x <= 0, the same bits wherever an element stands.

    Args:
        x: float64, any shape, at most 0. ``-inf`` and everything under -700 give about 1e-304.

    Returns:
        A new float64 tensor; exactly 1 where x is 0.

    Source:
        x = k ln 2 + r with |r| <= ln(2) / 2, Taylor series for e^r, 2^k put into the exponent bits.
    """
    x = x.clamp(min=_MIN_EXPONENT)
    k = torch.round(x * (1.0 / math.log(2.0)))
    r = x.sub_(k * _LN2_HIGH).sub_(k * _LN2_LOW)
    series = torch.full_like(r, 1.0 / math.factorial(_EXP_TERMS))
    for n in range(_EXP_TERMS - 1, -1, -1):
        series.mul_(r).add_(1.0 / math.factorial(n))
    bits = series.view(torch.int64)
    bits.add_(k.to(torch.int64) << 52)
    return series


def ln_unit(v: Tensor) -> Tensor:
    """Return ln v for 0 < v < 1, the same bits wherever an element stands.

    Args:
        v: float64, any shape, normal numbers in (0, 1).

    Returns:
        A new float64 tensor, strictly negative; relatively accurate also next to v = 1.

    Source:
        v = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh((m - 1) / (m + 1)) as its series.
    """
    bits = v.contiguous().view(torch.int64)
    k = (bits >> 52) - 1023
    m = ((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).view(torch.float64)
    is_high = m >= _SQRT2
    k = k.add_(is_high).to(torch.float64)
    m = torch.where(is_high, m * 0.5, m)
    s = (m - 1.0).div_(m + 1.0)
    z = s * s
    series = torch.full_like(z, 1.0 / (2 * _LN_TERMS + 1))
    for n in range(_LN_TERMS - 1, -1, -1):
        series.mul_(z).add_(1.0 / (2 * n + 1))
    return series.mul_(s).mul_(2.0).add_(k * _LN2_LOW).add_(k * _LN2_HIGH)


def sum_rows(x_BN: Tensor) -> Tensor:
    """Sum each row by halving: a fixed tree that depends on the row length only.

    Args:
        x_BN: ``[B, N]`` with N >= 1, any floating dtype. Not modified.

    Returns:
        ``[B]`` in the same dtype.
    """
    width = x_BN.shape[1]
    while width > 1:
        half = (width + 1) // 2
        folded_BN = x_BN[:, :half].clone()
        folded_BN[:, : width - half] += x_BN[:, half:width]
        x_BN, width = folded_BN, half
    return x_BN[:, 0]
