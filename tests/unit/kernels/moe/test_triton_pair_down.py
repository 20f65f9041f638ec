"""The second kernel for single pairs: a pair's columns, and nothing for padding."""

import torch

from headrace.kernels.moe.triton_pair_down import pair_down_kernel
from tests.support.kernels_device import experts, normal


def test_padding_is_left_as_it_was() -> None:
    _, down = experts(4, 32, 16)
    act, out = normal(3, 16), torch.full((3, 32), 7.0)
    ids = torch.tensor([2, -1, 0], dtype=torch.int32)
    pair_down_kernel[(4, 3)](act, down, out, ids, H=32, I=16, BLOCK_M=8, BLOCK_I=16, CHAINED=False)
    assert (out[1] == 7.0).all()
    torch.testing.assert_close(out[0], down[2] @ act[0])
    torch.testing.assert_close(out[2], down[0] @ act[2])
