"""Counter-based noise: a pure function of (seed, position, token id).

No generator has a state that could drift: a sequence that is preempted, resumed on another
replica or moved to another row of the batch meets the same noise at the same position.

The mixer is the published splitmix64 finaliser (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014, with Stafford's variant 13 of the multipliers), on
integers modulo 2**64. torch's int64 wraps around the same way; its right shift keeps the sign,
so the shifted-in bits are masked off.

Shape letters in this file:
    R = rows that draw    K = candidate tokens of a row
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sampling.elementary import ln_unit

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step of splitmix64's counter
MULTIPLY_1 = 0xBF58476D1CE4E5B9
MULTIPLY_2 = 0x94D049BB133111EB
_CHOICE_SALT = 0x63686F6963655F69  # keeps the seeds of choices apart from the noise of positions
_WORD = (1 << 64) - 1


def to_int64(value: int) -> int:
    """Return ``value`` modulo 2**64 as the signed number that int64 holds."""
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def mix64(z: int) -> int:
    """Scramble a 64-bit word: a bijection of ``range(2**64)``.

    Example:
        >>> hex(mix64(0x9E3779B97F4A7C15))
        '0xe220a8397b1dcdaf'
    """
    z &= _WORD
    z = (z ^ (z >> 30)) * MULTIPLY_1 & _WORD
    z = (z ^ (z >> 27)) * MULTIPLY_2 & _WORD
    return z ^ (z >> 31)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of a request's choices.

    Args:
        seed: The request's seed.
        choice: Index of the choice, from 0.

    Returns:
        ``seed`` itself for choice 0; otherwise a number in ``range(2**63)``.
    """
    if choice == 0:
        return seed
    return mix64(mix64(seed ^ _CHOICE_SALT) + choice * GOLDEN) >> 1


def _shift_xor(z: Tensor, bits: int) -> Tensor:
    shifted = (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
    return shifted.bitwise_xor_(z)


def mix64_tensor(z: Tensor) -> Tensor:
    """Apply ``mix64`` to every element of an int64 tensor (as unsigned words)."""
    z = _shift_xor(z, 30).mul_(to_int64(MULTIPLY_1))
    z = _shift_xor(z, 27).mul_(to_int64(MULTIPLY_2))
    return _shift_xor(z, 31)


def row_keys(seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    """Return the key of each row's noise, int64 ``[R]``.

    Args:
        seeds_R: int64 seeds (modulo 2**64).
        positions_R: int64 index in prompt + output of the token to be drawn.
    """
    return mix64_tensor(mix64_tensor(seeds_R) + (positions_R + 1) * to_int64(GOLDEN))


def random_bits(keys_R: Tensor, token_ids_RK: Tensor) -> Tensor:
    """Return 52 random bits per row and token, int64 ``[R, K]``.

    Args:
        keys_R: int64 from ``row_keys``.
        token_ids_RK: int64 token ids, ``[R, K]`` or ``[1, K]`` when all rows have the same.
    """
    words_RK = mix64_tensor(keys_R[:, None] + (token_ids_RK + 1) * to_int64(GOLDEN))
    return words_RK.bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)


def to_uniform(bits_RK: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return (bits + 1/2) / 2**52: in (0, 1) and exact in float64, in (0, 1] in float32."""
    return bits_RK.to(dtype).add_(0.5).mul_(2.0**-52)


def exponential_noise(keys_R: Tensor, token_ids_RK: Tensor) -> Tensor:
    """Return -ln(1 - u), u uniform from ``random_bits``: an exponential variate of rate 1.

    Returns:
        float64 ``[R, K]`` in [1.1e-16, 36.8].

    Guarantees:
        An element depends on its own key and token id only, in every bit.
    """
    return ln_unit(1.0 - to_uniform(random_bits(keys_R, token_ids_RK))).neg_()
