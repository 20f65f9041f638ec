"""Parts of a product are added up, and what pads their number is not."""

import torch

from headrace.kernels.linear.triton_sum_parts import sum_parts_kernel
from tests.support.kernels_device import normal


def test_only_the_parts_that_there_are_count() -> None:
    parts, y = normal(3, 2, 20), torch.full((2, 20), 7.0)
    sum_parts_kernel[(2, 2)](parts, y, 2, S=3, S_PAD=4, N=20, BLOCK_N=16, CHAINED=False)
    torch.testing.assert_close(y, parts.sum(0))
