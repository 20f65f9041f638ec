"""Merging, interpreted: the split rule of the host, and sums that no cut changes."""

import pytest
import torch
import triton
import triton.language as tl

from headrace.kernels.attention.decode_plan import DecodeKnobs, split_tokens
from headrace.kernels.attention.triton_merge import merge_parts, split_size

KNOBS = DecodeKnobs()


@triton.jit
def _sizes(lengths, sizes, BASE: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(sizes + i, split_size(tl.load(lengths + i), BASE, SPLITS, MOST))


@triton.jit
def _merge(parts, lses, out, lse, first, count, R: tl.constexpr, AT_ONCE: tl.constexpr):
    r_R = tl.arange(0, 4)
    d_D = tl.arange(0, 16)
    out_RD, lse_R = merge_parts(parts, lses, first, count, r_R, d_D, R, 16, 8, AT_ONCE)
    tl.store(out + r_R[:, None] * 16 + d_D[None, :], out_RD, mask=(r_R < R)[:, None])
    tl.store(lse + r_R, lse_R, mask=r_R < R)


def test_device_and_host_cut_alike() -> None:
    edges = (0, 1, 256, 4095, 4096, 4097, 8192, 32767, 32768, 32769, 65536, 65537)
    lengths = torch.tensor([*edges, 131072, 262145, 1 << 20, 1 << 22], dtype=torch.int32)
    sizes = torch.zeros_like(lengths)
    _sizes[(1,)](
        lengths, sizes, BASE=KNOBS.base_tokens, SPLITS=KNOBS.base_splits, MOST=KNOBS.max_splits
    )
    assert sizes.tolist() == [split_tokens(length, KNOBS) for length in lengths.tolist()]


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 8), (3, 5)])
@pytest.mark.parametrize("at_once", [2, 8])
def test_parts_merge_by_their_weights(first: int, count: int, at_once: int) -> None:
    generator = torch.Generator().manual_seed(0)
    parts_XRD = torch.randn(8, 3, 16, generator=generator)
    lses_XR = torch.randn(8, 3, generator=generator) * 8
    taken = slice(first, first + count)
    weights_XR = torch.softmax(lses_XR[taken].double() * torch.log(torch.tensor(2.0)), 0)
    expected_RD = (weights_XR[:, :, None] * parts_XRD[taken]).sum(0)
    expected_R = lses_XR[taken].double().exp2().sum(0).log2()
    # Places that do not take part hold what an earlier launch left, or nothing yet.
    mask = torch.ones(8, dtype=torch.bool)
    mask[taken] = False
    parts_XRD[mask] = torch.nan
    lses_XR[mask] = torch.nan
    out_RD, lse_R = torch.zeros(3, 16), torch.zeros(3)
    _merge[(1,)](parts_XRD, lses_XR, out_RD, lse_R, first, count, R=3, AT_ONCE=at_once)
    torch.testing.assert_close(out_RD.double(), expected_RD, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse_R.double(), expected_R, rtol=1e-5, atol=1e-6)
