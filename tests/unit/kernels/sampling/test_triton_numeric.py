"""Device arithmetic has the bits of the CPU's where it says so, and its fineness elsewhere."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from headrace.kernels.sampling import elementary, noise
from headrace.kernels.sampling.order import unique_keys
from headrace.kernels.sampling.triton_numeric import (
    exact_noise,
    exp_nonpositive,
    fast_noise,
    ln_unit,
    ordered,
    random_bits,
    row_key,
    unique_key,
    unordered,
)

N = 1024


@triton.jit
def _noise(seed, position, bits, exact, fast, N: tl.constexpr):
    ids = tl.arange(0, N)
    words = random_bits(row_key(tl.load(seed), tl.load(position)), ids)
    tl.store(bits + ids, words.to(tl.int64))
    tl.store(exact + ids, exact_noise(words))
    tl.store(fast + ids, fast_noise(words))


@triton.jit
def _elementary(x, exponentials, v, logarithms, N: tl.constexpr):
    places = tl.arange(0, N)
    tl.store(exponentials + places, exp_nonpositive(tl.load(x + places)))
    tl.store(logarithms + places, ln_unit(tl.load(v + places)))


@triton.jit
def _keys(x, back, keys, N: tl.constexpr):
    places = tl.arange(0, N)
    values = tl.load(x + places)
    tl.store(back + places, unordered(ordered(values)))
    tl.store(keys + places, unique_key(values, places))


def test_noise_is_that_of_the_cpu() -> None:
    for seed, position in ((0, 0), (5, 77), ((1 << 64) - 3, 1 << 40)):
        mixed = torch.tensor([noise.to_int64(noise.mix64(seed))])
        bits, exact, fast = (
            torch.zeros(N, dtype=torch.int64),
            torch.zeros(N).double(),
            torch.zeros(N),
        )
        _noise[(1,)](mixed, torch.tensor([position]), bits, exact, fast, N=N)
        keys_1 = noise.row_keys(torch.tensor([noise.to_int64(seed)]), torch.tensor([position]))
        ids_1N = torch.arange(N)[None]
        assert torch.equal(bits, noise.random_bits(keys_1, ids_1N)[0])
        assert torch.equal(exact, noise.exponential_noise(keys_1, ids_1N)[0])
        # From 1 upwards the uniform number has only 24 bits left to tell its distance from 1.
        assert ((fast - exact).abs() <= 1e-6 * exact.clamp(min=0) * exact.exp().clamp(min=1)).all()


def test_exp_and_ln_are_those_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(3)
    x = -torch.rand(N, generator=generator, dtype=torch.float64) * 800
    x[:4] = torch.tensor([0.0, -1e-300, -700.0, -1e30], dtype=torch.float64)
    v = torch.rand(N, generator=generator, dtype=torch.float64).clamp(min=1e-300)
    v[:3] = torch.tensor([1.1e-16, 1.0 - 2.0**-53, 0.5], dtype=torch.float64)
    exponentials, logarithms = torch.empty_like(x), torch.empty_like(x)
    _elementary[(1,)](x, exponentials, v, logarithms, N=N)
    assert torch.equal(exponentials, elementary.exp_nonpositive(x))
    assert torch.equal(logarithms, elementary.ln_unit(v))


def test_keys_order_like_the_cpu_and_can_be_undone() -> None:
    x = torch.randn(N, generator=torch.Generator().manual_seed(4)).mul_(4).round_().div_(4)
    x[:4] = torch.tensor([0.0, -0.0, 3e38, -3e38])
    back, keys = torch.empty(N), torch.zeros(N, dtype=torch.int64)
    _keys[(1,)](x, back, keys, N=N)
    assert torch.equal(back, x + 0.0)
    assert (
        np.argsort(keys.numpy()).tolist()
        == np.argsort(unique_keys(x, torch.arange(N)).numpy()).tolist()
    )
