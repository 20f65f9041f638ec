"""Products of few rows on a device: errors of torch at most twice, rows alone.

Shape letters: T = rows   K = inner width   N = columns
"""

import pytest
import torch
from torch import Tensor

from headrace.kernels.linear.family import NARROW_LINEAR
from tests.support.kernels_errors import assert_near

NAMES = [variant.name for variant in NARROW_LINEAR.variants if variant.name != "reference"]
ROWS = {"few_rows_triton": (1, 2, 4, 8), "split_rows_triton": (0, 1, 3, 8, 16)}
# The attention's input and output products and the gate of Qwen3-30B-A3B; nothing that divides.
SHAPES = ((5120, 2048), (2048, 4096), (128, 2048), (1000, 1032))
CASES = [(name, rows, shape) for name in NAMES for rows in ROWS[name] for shape in SHAPES]


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize(("name", "num_rows", "shape"), CASES)
def test_errors_stay_within_twice_those_of_torch(
    name: str, num_rows: int, shape: tuple[int, int]
) -> None:
    x_TK, weight_NK = normal(num_rows, shape[1], seed=0), normal(*shape, seed=1)
    y_TN = NARROW_LINEAR.variant(name).load()(x_TK, weight_NK)
    exact_TN = x_TK.double() @ weight_NK.double().t()
    assert_near(y_TN, x_TK @ weight_NK.t(), exact_TN)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_whatever_stands_beside_it(name: str) -> None:
    linear = NARROW_LINEAR.variant(name).load()
    x_TK, weight_NK = normal(8, 2048, seed=0), normal(5120, 2048, seed=1)
    y_TN = linear(x_TK, weight_NK)
    x_TK[1:] = torch.nan
    assert torch.equal(linear(x_TK, weight_NK)[0], y_TN[0])
