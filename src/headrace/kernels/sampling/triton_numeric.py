"""Arithmetic of device sampling inside Triton kernels.

The float64 functions repeat those of ``elementary.py`` operation by operation. Launched with
``enable_fp_fusion=False`` they give the same bits as the CPU, so an exact race has one winner.
The fp32 functions only estimate; they may use whatever instructions are fast.
"""

import triton
import triton.language as tl

from headrace.kernels.sampling import noise

_GOLDEN = tl.constexpr(noise.GOLDEN)
_MULTIPLY_1 = tl.constexpr(noise.MULTIPLY_1)
_MULTIPLY_2 = tl.constexpr(noise.MULTIPLY_2)
_LN2_HIGH = tl.constexpr(6.93147180369123816490e-01)
_LN2_LOW = tl.constexpr(1.90821492927058770002e-10)
_INVERSE_LN2 = tl.constexpr(1.0 / 0.6931471805599453)
# Adding and taking off 1.5 * 2**52 rounds a smaller float64 to an integer, halves to even.
_ROUNDER = tl.constexpr(1.5 * 2.0**52)
_ID_BITS = tl.constexpr(20)
_ID_MASK = tl.constexpr((1 << 20) - 1)


@triton.jit
def mix64(z):
    """Scramble uint64 words: ``noise.mix64``."""
    z = (z ^ (z >> 30)) * _MULTIPLY_1
    z = (z ^ (z >> 27)) * _MULTIPLY_2
    return z ^ (z >> 31)


@triton.jit
def row_key(mixed_seed, position):
    """Return the uint64 key of a row's noise from its mixed seed and its position (int64)."""
    return mix64(mixed_seed.to(tl.uint64) + (position + 1).to(tl.uint64) * _GOLDEN)


@triton.jit
def random_bits(key, ids):
    """Return 52 random bits per token as uint64: ``noise.random_bits``."""
    return mix64(key + (ids + 1).to(tl.uint64) * _GOLDEN) >> 12


@triton.jit
def exact_noise(bits):
    """Return ``noise.exponential_noise`` of random bits, the same float64 bits."""
    uniform = (bits.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return 0.0 - ln_unit(1.0 - uniform)


@triton.jit
def fast_noise(bits):
    """Estimate the same noise in fp32, up to 16.6, to about 1e-6 where it is under 1.

    1 - u would cancel where u is small, which is where winners are: there the series of
    -ln(1 - u) is used.
    """
    high = (bits >> 20).to(tl.uint32).to(tl.float32)
    low = (bits & 0xFFFFF).to(tl.uint32).to(tl.float32) + 0.5
    u = tl.minimum(tl.fma(high, 2.3283064365386963e-10, low * 2.220446049250313e-16), 0.99999994)
    series = tl.fma(u, 1.0 / 7.0, 1.0 / 6.0)
    series = tl.fma(series, u, 1.0 / 5.0)
    series = tl.fma(series, u, 1.0 / 4.0)
    series = tl.fma(series, u, 1.0 / 3.0)
    series = tl.fma(series, u, 1.0 / 2.0)
    series = tl.fma(series * u, u, u)
    return tl.where(u < 0.125, series, 0.0 - tl.log(1.0 - u))


@triton.jit
def exp_nonpositive(x):
    """Return ``elementary.exp_nonpositive`` of float64 x <= 0, the same bits."""
    x = tl.maximum(x, -700.0)
    k = (x * _INVERSE_LN2 + _ROUNDER) - _ROUNDER
    r = x - k * _LN2_HIGH
    r = r - k * _LN2_LOW
    s = r * (1.0 / 3628800.0) + 1.0 / 362880.0
    s = s * r + 1.0 / 40320.0
    s = s * r + 1.0 / 5040.0
    s = s * r + 1.0 / 720.0
    s = s * r + 1.0 / 120.0
    s = s * r + 1.0 / 24.0
    s = s * r + 1.0 / 6.0
    s = s * r + 0.5
    s = s * r + 1.0
    s = s * r + 1.0
    bits = s.to(tl.int64, bitcast=True) + (k.to(tl.int64) << 52)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def ln_unit(v):
    """Return ``elementary.ln_unit`` of float64 v in (0, 1), the same bits."""
    bits = v.to(tl.int64, bitcast=True)
    k = (bits >> 52) - 1023
    fraction = bits & 0xFFFFFFFFFFFFF
    m = (fraction | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    # m >= sqrt(2), by its bits: Triton 3.6 rounds the literal of a comparison to fp32.
    is_high = fraction >= 0x6A09E667F3BCD
    k = (k + is_high.to(tl.int64)).to(tl.float64)
    m = tl.where(is_high, m * 0.5, m)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = z * (1.0 / 17.0) + 1.0 / 15.0
    series = series * z + 1.0 / 13.0
    series = series * z + 1.0 / 11.0
    series = series * z + 1.0 / 9.0
    series = series * z + 1.0 / 7.0
    series = series * z + 1.0 / 5.0
    series = series * z + 1.0 / 3.0
    series = series * z + 1.0
    return series * s * 2.0 + k * _LN2_LOW + k * _LN2_HIGH


@triton.jit
def ordered(x):
    """Return int32 keys of finite fp32 numbers in the same order; -0.0 equals 0.0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def unordered(key):
    """Return the fp32 number of an int32 key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def unique_key(x, ids):
    """Return int64 keys: greater for greater logits and then for lower ids (under 2**20)."""
    return (ordered(x).to(tl.int64) << _ID_BITS) | (ids ^ _ID_MASK).to(tl.int64)
