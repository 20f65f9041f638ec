"""Where nothing can be chained, kernels run one after another."""

import torch
import triton
import triton.language as tl

from headrace.kernels.chain import launch, let_next_begin, wait_for_before


@triton.jit
def _double(x_ptr, y_ptr, N: tl.constexpr, CHAINED: tl.constexpr):
    let_next_begin(CHAINED)
    places = tl.arange(0, N)
    wait_for_before(CHAINED)
    tl.store(y_ptr + places, 2 * tl.load(x_ptr + places))


def test_a_kernel_on_the_cpu_is_launched_plainly() -> None:
    x = torch.arange(4.0)
    y, z = torch.zeros(4), torch.zeros(4)
    launch(_double, (1,), x, y, N=4, num_warps=1)
    launch(_double, (1,), y, z, N=4, num_warps=1)
    assert z.tolist() == [0.0, 4.0, 8.0, 12.0]
