import math

import pytest
import torch

from headrace.kernels.rope import YarnScaling, apply_rope, rope_table
from tests.support.kernels_checks import DTYPES, assert_bits_equal, random

YARN = YarnScaling(factor=4.0, original_max_positions=64)


def rotate(x: torch.Tensor, positions: torch.Tensor, **table: object) -> torch.Tensor:
    rows = rope_table(x.shape[-1], 512, **{"theta": 10000.0, "dtype": x.dtype, **table})
    return apply_rope(x, *rows.rows(positions))


def test_position_zero_is_left_alone() -> None:
    x = random(1, 3, 16)
    assert_bits_equal(rotate(x, torch.tensor([0])), x)


def test_pairs_turn_by_position_times_frequency() -> None:
    x, positions = random(6, 2, 8), torch.tensor([0, 1, 2, 50, 51, 400])
    frequencies = 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    turn = torch.polar(torch.ones(()).double(), positions[:, None, None] * frequencies)
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double()) * turn
    expected = torch.cat((pairs.real, pairs.imag), dim=-1)
    torch.testing.assert_close(rotate(x, positions).double(), expected, rtol=1e-4, atol=1e-4)


def test_products_depend_on_the_distance_only() -> None:
    q, k = random(1, 1, 32), random(1, 1, 32, seed=1)
    scores = [
        (rotate(q, torch.tensor([n + 7])) * rotate(k, torch.tensor([n]))).sum() for n in (0, 90)
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    x, positions = random(33, 2, 16, dtype=dtype), torch.arange(100, 133)
    whole = rotate(x, positions)
    for start, stop in [(0, 1), (3, 10), (32, 33)]:
        assert_bits_equal(rotate(x[start:stop], positions[start:stop]), whole[start:stop])


def test_a_longer_table_has_the_same_entries() -> None:
    short = rope_table(32, 100, theta=1e6)
    long = rope_table(32, 333, theta=1e6)
    assert_bits_equal(long.cos_PF[:100], short.cos_PF)
    assert_bits_equal(long.sin_PF[:100], short.sin_PF)


def test_yarn_keeps_fast_frequencies_and_interpolates_slow_ones() -> None:
    plain = rope_table(64, 2, theta=10000.0)
    yarn = rope_table(64, 2, theta=10000.0, yarn=YARN)
    angle = [torch.atan2(table.sin_PF[1], table.cos_PF[1]) for table in (plain, yarn)]
    torch.testing.assert_close(angle[1][0], angle[0][0])
    torch.testing.assert_close(angle[1][-1], angle[0][-1] / 4.0)


@pytest.mark.parametrize(
    ("changes", "amplitude"),
    [
        ({}, 0.1 * math.log(4.0) + 1.0),
        ({"attention_factor": 1.5}, 1.5),
        ({"factor": 1.0}, 1.0),
        (
            {"mscale": 0.7, "mscale_all_dim": 1.3},
            (0.07 * math.log(4.0) + 1.0) / (0.13 * math.log(4.0) + 1.0),
        ),
    ],
)
def test_yarns_attention_factor_scales_cos_and_sin(
    changes: dict[str, float], amplitude: float
) -> None:
    yarn = YarnScaling(**{"factor": 4.0, "original_max_positions": 64, **changes})
    table = rope_table(16, 8, theta=10000.0, yarn=yarn)
    norms = torch.hypot(table.cos_PF, table.sin_PF)
    torch.testing.assert_close(norms, torch.full_like(norms, amplitude))


def test_no_tokens_give_no_tokens() -> None:
    assert rotate(random(0, 2, 8), torch.zeros(0, dtype=torch.int64)).shape == (0, 2, 8)
