"""The shortcut over a whole vocabulary never changes the winner of the exact race."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels.sampling.noise import row_keys
from headrace.kernels.sampling.race import RaceRows, race, race_vocabulary, weights


def rows_of(num_rows: int, *, seed: int, temperature: float, min_p: float) -> RaceRows:
    seeds_R = torch.arange(num_rows) + seed * num_rows
    return RaceRows(
        keys_R=row_keys(seeds_R, torch.full((num_rows,), 3)),
        temperature_R=torch.full((num_rows,), temperature, dtype=torch.float64),
        min_p_R=torch.full((num_rows,), min_p, dtype=torch.float64),
    )


def exact_winners(x_RV: torch.Tensor, rows: RaceRows) -> torch.Tensor:
    weights_RV = weights(x_RV, x_RV.amax(dim=-1, keepdim=True), rows.temperature_R)
    ids_RV = torch.arange(x_RV.shape[1]).expand(len(x_RV), -1)
    keep_RV = weights_RV >= rows.min_p_R[:, None]
    return race(weights_RV, ids_RV, keep_RK=keep_RV, keys_R=rows.keys_R)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-300, 1e-6, 0.3, 1.0, 5.0, 1e6]),
    st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
    st.sampled_from([0.0, 1.0, 20.0, 1e30]),
    st.integers(1, 300),
)
def test_shortlist_always_holds_the_winner(
    seed: int, temperature: float, min_p: float, spread: float, width: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x_RV = spread * torch.randn(16, width, generator=generator)
    rows = rows_of(16, seed=seed, temperature=temperature, min_p=min_p)
    assert torch.equal(race_vocabulary(x_RV, rows), exact_winners(x_RV, rows))


def test_a_lone_favourite_wins_whatever_its_noise() -> None:
    # Noise above the sure limit (one token in 3000) must not drop a token that wins all the same.
    x_RV = torch.full((8000, 4), -50.0)
    x_RV[:, 2] = 0.0
    rows = rows_of(8000, seed=0, temperature=1.0, min_p=0.0)
    assert bool((race_vocabulary(x_RV, rows) == 2).all())


def test_only_kept_candidates_can_win() -> None:
    rows = rows_of(200, seed=1, temperature=1.0, min_p=0.0)
    weights_RK = torch.ones(200, 5, dtype=torch.float64)
    ids_RK = torch.tensor([40, 30, 20, 10, 0]).expand(200, -1)
    keep_RK = torch.tensor([False, True, False, True, False]).expand(200, -1)
    winners = race(weights_RK, ids_RK, keep_RK=keep_RK, keys_R=rows.keys_R)
    assert set(winners.tolist()) == {30, 10}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_weights_are_the_unnormalised_softmax(temperature: float) -> None:
    x_RK = torch.tensor([[2.0, 1.0, -3.0]])
    came = weights(x_RK, x_RK[:, :1], torch.tensor([temperature], dtype=torch.float64))
    want = [math.exp((x - 2.0) / temperature) for x in (2.0, 1.0, -3.0)]
    assert came[0].tolist() == pytest.approx(want, rel=1e-11)
