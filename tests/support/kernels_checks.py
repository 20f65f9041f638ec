"""What kernel tests assert: accuracy against fp64, and equality bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_as_accurate(actual: Tensor, *, reference: Tensor, library: Tensor) -> None:
    """Hold the error against fp64 to twice that of the library's path in the same dtype."""
    assert reference.dtype == torch.float64
    assert actual.shape == reference.shape
    error = (actual.double() - reference).abs()
    bound = 2 * (library.double() - reference).abs().max() + 1e-6 * reference.abs().max()
    worst = int(error.argmax()) if error.numel() else 0
    assert error.numel() == 0 or error.max() <= bound, (
        f"error {error.max():.3e} at flat index {worst} exceeds {bound:.3e}"
    )


def assert_bits_equal(actual: Tensor, expected: Tensor) -> None:
    """Hold two tensors equal, with NaN equal to NaN and -0 different from +0."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    integers = {4: torch.int32, 2: torch.int16}[actual.element_size()]
    different = actual.contiguous().view(integers) != expected.contiguous().view(integers)
    assert not different.any(), f"{int(different.sum())} of {different.numel()} elements differ"
