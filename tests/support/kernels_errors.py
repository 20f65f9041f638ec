"""How far a kernel may be from the truth: a small multiple of what torch is in the same dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_near(
    result: Tensor, plain: Tensor, exact: Tensor, *, times: float = 2.0, constant: float = 1e-5
) -> None:
    """Allow ``times`` the largest error of the plain path, and a part of the largest value.

    Args:
        result: Of the kernel.
        plain: What torch computes from the same inputs in the same dtype.
        exact: What fp64 gives from them.
        times: Errors of the plain path that are allowed.
        constant: Allowed besides, relative to the largest exact value.
    """
    assert result.shape == plain.shape == exact.shape
    if exact.numel() == 0:
        return
    assert exact.dtype is torch.float64
    errors = (result.double() - exact).abs()
    # A NaN is the worst error there is, and every comparison with it is false.
    errors = errors.nan_to_num(torch.inf)
    worst = int(errors.argmax())
    place = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), exact.shape))
    bound = times * float((plain.double() - exact).abs().max())
    bound += constant * float(exact.abs().max())
    error = float(errors.flatten()[worst])
    assert error <= bound, f"error {error:.3g} over {bound:.3g} at {place}"
