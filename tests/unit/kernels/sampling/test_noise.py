"""Counter-based noise: the published mixer, uniform, a function of its key alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.sampling.noise import (
    GOLDEN,
    choice_seed,
    exponential_noise,
    mix64,
    mix64_tensor,
    random_bits,
    row_keys,
    to_int64,
    to_uniform,
)

WORDS = st.integers(0, (1 << 64) - 1)


def test_mixer_is_the_published_splitmix64() -> None:
    # First outputs of splitmix64 from state 1234567, as published with many generators' tests.
    outputs = [mix64(1234567 + (n + 1) * GOLDEN) for n in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_tensor_mixer_equals_the_integer_one(words: list[int]) -> None:
    came = mix64_tensor(torch.tensor([to_int64(word) for word in words]))
    assert came.tolist() == [to_int64(mix64(word)) for word in words]


@given(WORDS, st.integers(0, 127))
def test_choice_zero_keeps_the_seed_and_others_differ(seed: int, choice: int) -> None:
    assert choice_seed(seed, 0) == seed
    assert 0 <= choice_seed(seed, choice + 1) < 1 << 63
    assert choice_seed(seed, choice + 1) != choice_seed(seed, choice + 2)


def test_noise_depends_on_seed_position_and_token() -> None:
    seeds_R = torch.tensor([1, 2, 1, 1])
    positions_R = torch.tensor([5, 5, 6, 5])
    noise_RK = random_bits(row_keys(seeds_R, positions_R), torch.arange(100)[None])
    assert torch.equal(noise_RK[0], noise_RK[3])
    for other in (1, 2):
        assert bool((noise_RK[0] != noise_RK[other]).all())
    assert len(set(noise_RK[0].tolist())) == 100


def test_noise_of_a_token_is_the_same_among_any_candidates() -> None:
    keys_R = row_keys(torch.tensor([7, 8]), torch.tensor([3, 4]))
    whole_RK = exponential_noise(keys_R, torch.arange(257)[None])
    some_RK = torch.tensor([[200, 3, 17], [256, 0, 99]])
    assert torch.equal(exponential_noise(keys_R, some_RK), whole_RK.gather(1, some_RK))
    assert torch.equal(exponential_noise(keys_R[1:], torch.arange(257)[None]), whole_RK[1:])


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    keys_R = row_keys(torch.arange(64), torch.zeros(64, dtype=torch.int64))
    u = to_uniform(random_bits(keys_R, torch.arange(1000)[None])).flatten()
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    counts = torch.histc(u, bins=50, min=0, max=1)
    chi_square = float(((counts - 1280) ** 2 / 1280).sum())
    assert chi_square < 85.35  # 99.9 % of 49 degrees of freedom
    assert bool((exponential_noise(keys_R, torch.arange(1000)[None]) > 0).all())


def test_neighbouring_keys_are_uncorrelated() -> None:
    seeds = row_keys(torch.arange(4000), torch.full((4000,), 9))
    positions = row_keys(torch.full((4000,), 9), torch.arange(4000))
    for keys_R in (seeds, positions):
        u = to_uniform(random_bits(keys_R, torch.arange(2)[None]))
        pairs = ((u[:-1, 0], u[1:, 0]), (u[:, 0], u[:, 1]))
        for a, b in pairs:
            correlation = torch.corrcoef(torch.stack([a, b]))[0, 1]
            assert abs(float(correlation)) < 0.055  # 3.5 standard errors of 4000 pairs


def test_fp32_uniforms_are_the_same_numbers_rounded() -> None:
    bits = random_bits(row_keys(torch.tensor([1]), torch.tensor([1])), torch.arange(500)[None])
    bits = torch.cat([bits, torch.tensor([[0, 1, (1 << 52) - 1]])], dim=1)
    exact, rounded = to_uniform(bits), to_uniform(bits, torch.float32)
    assert bool((rounded > 0).all())
    assert bool(((rounded - exact).abs() <= exact * 2.0**-22).all())
