"""Merging, interpreted: the split rule of the host, and sums that no cut changes."""

import pytest
import torch
import triton
import triton.language as tl

from headrace.kernels.attention.decode_plan import DecodeKnobs, split_tokens
from headrace.kernels.attention.triton_merge import merge_kernel, split_size

KNOBS = DecodeKnobs()


@triton.jit
def _sizes(lengths, sizes, BASE: tl.constexpr, TILE: tl.constexpr, MOST: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(sizes + i, split_size(tl.load(lengths + i), BASE, TILE, MOST))


def test_device_and_host_cut_alike() -> None:
    edges = (0, 1, 256, 4096, 16383, 16384, 16385, 20480, 20481, 32769, 65536, 65537)
    lengths = torch.tensor([*edges, 131072, 262145, 1 << 20, 1 << 22], dtype=torch.int32)
    sizes = torch.zeros_like(lengths)
    _sizes[(1,)](
        lengths, sizes, BASE=KNOBS.base_tokens, TILE=KNOBS.tile_tokens, MOST=KNOBS.max_splits
    )
    assert sizes.tolist() == [split_tokens(length, KNOBS) for length in lengths.tolist()]


@pytest.mark.parametrize("num_splits", [2, 5, 16])
@pytest.mark.parametrize("at_once", [4, 16])
def test_parts_merge_by_their_weights(num_splits: int, at_once: int) -> None:
    generator = torch.Generator().manual_seed(0)
    parts_XRD = torch.randn(16, 3, 16, generator=generator)
    lses_XR = torch.randn(16, 3, generator=generator) * 8
    weights_XR = torch.softmax(lses_XR[:num_splits].double() * torch.log(torch.tensor(2.0)), 0)
    expected_RD = (weights_XR[:, :, None] * parts_XRD[:num_splits]).sum(0)
    # Places past the last split hold what an earlier launch left, or nothing yet.
    parts_XRD[num_splits:] = torch.nan
    lses_XR[num_splits:] = torch.nan
    out_RD = torch.zeros(3, 16)
    merge_kernel[(1, 3)](
        parts_XRD, lses_XR, torch.tensor([32 * num_splits - 5], dtype=torch.int32), out_RD,
        48, 48, 48, 16, R=3, D=16, C=at_once, BASE_TOKENS=32, TILE_TOKENS=16, MAX_SPLITS=16,
        CHAINED=False,
    )  # fmt: skip
    torch.testing.assert_close(out_RD.double(), expected_RD, rtol=1e-5, atol=1e-6)
