"""Settings become words once, and keep their meaning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.core.requests import SamplingParams
from headrace.kernels.sampling import device_settings as fields
from headrace.kernels.sampling.device_settings import DeviceRow, RowKind
from headrace.kernels.sampling.noise import mix64


def encoded(seed: int = 0, slot: int = -1, **options: Any) -> DeviceRow:
    params = SamplingParams(max_tokens=1, **options)
    return DeviceRow.of(params, seed=seed, vocab_size=100, slot=slot)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"temperature": 0.0, "top_k": 5}, RowKind.GREEDY),
        ({}, RowKind.PLAIN),
        ({"top_k": 100}, RowKind.PLAIN),  # the whole vocabulary
        ({"top_k": 99}, RowKind.FILTERED),
        ({"top_p": 0.9}, RowKind.FILTERED),
        ({"min_p": 0.1}, RowKind.FILTERED),
    ],
)
def test_kind_follows_from_what_filters(options: dict[str, Any], kind: RowKind) -> None:
    assert encoded(**options).words[fields.KIND] == kind


def test_floats_keep_all_their_bits() -> None:
    floats = encoded(temperature=0.7, top_p=0.9, min_p=0.05).words.view(np.float64)
    assert floats[fields.TEMPERATURE] == 0.7
    assert floats[fields.TOP_P] == 0.9
    assert floats[fields.MIN_P] == 0.05
    assert floats[fields.LOG_MIN_P] == math.log(0.05)
    assert floats[fields.SCALE] == math.log2(math.e) / 0.7


def test_vanishing_temperature_has_a_finite_scale() -> None:
    scale = encoded(temperature=1e-300).words.view(np.float64)[fields.SCALE]
    assert np.isfinite(np.float32(scale))


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) + 5, (1 << 64) - 1])
def test_seeds_are_mixed_once(seed: int) -> None:
    assert int(encoded(seed=seed).words[fields.SEED]) % (1 << 64) == mix64(seed)


def test_bias_is_listed_by_token() -> None:
    row = encoded(logit_bias={9: 1.0, 3: -2.5, 4: 0.5})
    assert row.bias_tokens.tolist() == [3, 4, 9]
    assert row.bias_values.tolist() == [-2.5, 0.5, 1.0]
    assert row.words[fields.NUM_BIAS] == 3
